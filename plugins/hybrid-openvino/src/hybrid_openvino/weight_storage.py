"""Stores a model's weights in fewer bits, as constants that OpenVINO decompresses."""

import contextlib
import logging
import sys
from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from hybrid.api import ConfigError

_MIN_ELEMENTS: Final = 1024
"""Smaller constants (norms, scales, axes) stay as they are."""


def store_weights(model: ov.Model, weights: str, int4_group_size: int) -> ov.Model:
    """Return ``model`` with its weights in ``f32``, ``bf16``, ``int8`` or ``int4``.

    int8 is asymmetric by output channel; int4 asymmetric by group, the embeddings and
    the output in int8: NNCF's own choices.

    Raises:
        ConfigError: a matrix does not divide into groups.
    """
    if weights == "bf16":
        _store_bf16(model)
    elif weights in {"int8", "int4"}:
        return _compress(model, weights, int4_group_size)
    return model


def _store_bf16(model: ov.Model) -> None:
    for node in model.get_ops():
        if node.get_type_name() != "Constant":
            continue
        output = node.output(0)
        is_float = output.get_element_type() == ov.Type.f32
        if is_float and np.prod(list(output.get_shape())) >= _MIN_ELEMENTS:
            consumers = output.get_target_inputs()
            small = ops.constant(node.data, dtype=ov.Type.bf16)
            restored = ops.convert(small, "f32")
            for consumer in consumers:
                consumer.replace_source_output(restored.output(0))
    model.validate_nodes_and_infer_types()


def _compress(model: ov.Model, weights: str, group_size: int) -> ov.Model:
    import nncf  # noqa: PLC0415 - an extra (see options), and seconds to import

    settings: dict[str, Any] = {"mode": nncf.CompressWeightsMode.INT8_ASYM}
    if weights == "int4":
        settings = {
            "mode": nncf.CompressWeightsMode.INT4_ASYM,
            "group_size": group_size,
            "ratio": 1.0,
        }
    nncf.set_log_level(logging.ERROR)
    try:
        # Its bars and tables go to stdout, where the answers go.
        with contextlib.redirect_stdout(sys.stderr):
            compressed: ov.Model = nncf.compress_weights(model, **settings)
    except nncf.InvalidGroupSizeError as error:
        raise ConfigError(
            f"executor openvino: int4_group_size is {group_size}, which divides no "
            f"matrix of this model: {error}"
        ) from error
    return compressed
