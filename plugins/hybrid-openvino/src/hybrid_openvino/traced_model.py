"""From a Hugging Face directory to a stateful OpenVINO model, by tracing.

The result has the inputs and the cache states that OpenVINO's own exports have, so that
it is an ordinary model: OpenVINO GenAI runs it too. Nothing here knows of paging.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops
from openvino._offline_transformations import apply_make_stateful_transformation
from transformers.utils import logging as hf_logging

from hybrid.api import ProgressCallback, UnsupportedFeature, load_transformers_model

from .traced_attention import (
    ATTENTION_NAME,
    TRACE_KEYWORD,
    TracedCache,
    register_attention,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_INPUTS: Final = ("input_ids", "attention_mask", "position_ids")
_NUM_NEW: Final = 4
_NUM_PAST: Final = 3
"""Sizes of the traced example; the converted model takes any."""


@dataclass(frozen=True, slots=True)
class TracedModel:
    """A converted model and what was seen while it was traced."""

    model: ov.Model
    """Inputs ``input_ids``, ``attention_mask``, ``position_ids``, ``beam_idx``; output
    ``logits``; the cache is state."""
    windows: tuple[int, ...]
    """Sliding window of each layer in tokens; 0: none."""
    source: "PreTrainedModel"
    """The torch model, in float32."""


def trace_model(directory: Path, progress: ProgressCallback | None) -> TracedModel:
    """Load ``directory`` in float32 and convert it.

    Raises:
        CheckpointError: the files are at fault.
        UnsupportedFeature: the model cannot be traced, or attends in a way that paged
            attention does not offer.
    """
    register_attention()
    source = load_transformers_model(
        directory,
        dtype="float32",
        attn_implementation=ATTENTION_NAME,
        progress=progress,
    )
    wrapper = _ExplicitCache(source)
    example = wrapper.example()
    try:
        with torch.no_grad(), _quiet():
            # Run before it is traced: the frontend would wrap our refusals in its own.
            wrapper(*example)
            model = ov.convert_model(
                wrapper, example_input=example, input=wrapper.input_shapes()
            )
    except UnsupportedFeature:
        raise
    except Exception as error:  # whatever the model's code or the frontend raised
        raise UnsupportedFeature(
            f"executor openvino cannot convert {type(source).__name__}: "
            f"{type(error).__name__}: {str(error)[:500]}"
        ) from error
    states = _name_ports(model, wrapper.num_layers)
    _make_stateful(model, states)
    windows = tuple(wrapper.windows[layer] for layer in range(wrapper.num_layers))
    return TracedModel(model, windows, source)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep quiet what tracing says of every model: constants, renamed attributes."""
    verbosity = hf_logging.get_verbosity()
    hf_logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(verbosity)


class _ExplicitCache(torch.nn.Module):
    """The model with its cache as inputs and outputs, two tensors a layer."""

    def __init__(self, model: "PreTrainedModel") -> None:
        super().__init__()
        config = model.config.get_text_config()
        self.model = model
        self.num_layers: int = config.num_hidden_layers
        self.num_kv_heads: int = (
            getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        )
        self.head_dim: int = (
            getattr(config, "head_dim", None)
            or config.hidden_size // config.num_attention_heads
        )
        self.windows: dict[int, int] = {}

    def example(self) -> tuple[torch.Tensor, ...]:
        """Two sequences with some past: sizes that differ where they may differ."""
        total = _NUM_PAST + _NUM_NEW
        positions = torch.arange(_NUM_PAST, total)[None].expand(2, _NUM_NEW)
        shape = (2, self.num_kv_heads, _NUM_PAST, self.head_dim)
        return (
            torch.ones(2, _NUM_NEW, dtype=torch.int64),
            torch.ones(2, total, dtype=torch.int64),
            positions,
            *(torch.zeros(shape) for _ in range(2 * self.num_layers)),
        )

    def input_shapes(self) -> list[ov.PartialShape]:
        """Any batch, any length."""
        cache = ov.PartialShape([-1, self.num_kv_heads, -1, self.head_dim])
        tokens = ov.PartialShape([-1, -1])
        return [tokens] * len(_INPUTS) + [cache] * (2 * self.num_layers)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        *past: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Return logits, then past and new K and V of each layer, joined."""
        pairs = list(zip(past[::2], past[1::2], strict=True))
        cache = TracedCache(pairs, attention_mask)
        keywords: dict[str, Any] = {TRACE_KEYWORD: cache}
        output = self.model(
            input_ids=input_ids, position_ids=position_ids, use_cache=False, **keywords
        )
        if sorted(cache.present) != list(range(self.num_layers)):
            raise UnsupportedFeature(
                f"executor openvino cannot run {type(self.model).__name__}: of "
                f"{self.num_layers} layers, those that attend through the attention "
                f"interface are {sorted(cache.present)}"
            )
        self.windows = cache.windows
        present = (cache.present[layer] for layer in range(self.num_layers))
        return (output.logits, *(tensor for pair in present for tensor in pair))


def _name_ports(model: ov.Model, num_layers: int) -> dict[str, str]:
    """Name inputs and outputs as exports do; return cache inputs and their outputs."""
    pairs = {
        f"past_key_values.{layer}.{part}": f"present.{layer}.{part}"
        for layer in range(num_layers)
        for part in ("key", "value")
    }
    for port, name in zip(model.inputs, (*_INPUTS, *pairs), strict=True):
        port.get_node().set_friendly_name(name)
        port.get_tensor().set_names({name})
    outputs = ("logits", *pairs.values())
    for port, name in zip(model.outputs, outputs, strict=True):
        port.get_tensor().set_names({name})
    model.validate_nodes_and_infer_types()
    return pairs


def _make_stateful(model: ov.Model, pairs: dict[str, str]) -> None:
    """Turn the cache inputs into states, reordered by ``beam_idx``.

    Source: the graph that optimum-intel 2.2 makes (``exporters/openvino/stateful.py``),
    which the paged-attention transformation is written for.
    """
    beam_idx = ops.parameter(ov.PartialShape([-1]), dtype=ov.Type.i32, name="beam_idx")
    beam_idx.output(0).get_tensor().add_names({"beam_idx"})
    model.add_parameters([beam_idx])
    for name in pairs:
        port = model.input(name)
        consumers = port.get_target_inputs()
        reordered = ops.gather(port, beam_idx, ops.constant(0))
        for consumer in consumers:
            consumer.replace_source_output(reordered.output(0))
    model.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(model, pairs)
    ids_shape = ops.shape_of(model.input("input_ids"), output_type="i64")
    batch = ops.gather(ids_shape, ops.constant([0]), ops.constant(0))
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            node.set_arguments([_empty_state(node, batch)])
    model.validate_nodes_and_infer_types()


def _empty_state(node: Any, batch: Any) -> Any:
    """A cache of ``batch`` sequences and no token."""
    sizes = [size.min_length for size in node.get_output_partial_shape(0)]
    fixed = [ops.constant(np.array([size], dtype=np.int64)) for size in sizes[1:]]
    zero = ops.constant(0.0, dtype=node.get_output_element_type(0))
    return ops.broadcast(zero, ops.concat([batch, *fixed], axis=0))
