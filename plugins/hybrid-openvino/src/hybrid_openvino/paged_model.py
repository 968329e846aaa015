"""A stateful OpenVINO model made paged, compiled, and run over a pool of ours."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops
from openvino._offline_transformations import paged_attention_transformation

from hybrid.api import ConfigError, UnsupportedFeature

from .input_buffers import InputBuffers
from .joined_projections import join_projections
from .kv_pool import CellShape, KVPool
from .runtime import core
from .step_inputs import StepInputs

DEVICE: Final = "CPU"
ROWS_INPUT: Final = "logits_rows"
_CACHE_INPUT: Final = 3
_WINDOW_INPUT: Final = 10
"""Inputs of ``PagedAttentionExtension``: the layer's key cache, its sliding window.
Source: OpenVINO 2026.4, ``src/core/src/op/paged_attention.cpp``."""
_THROUGH: Final = {"Add", "Convert", "Divide", "Multiply", "Reshape", "Tanh"}
"""What may stand between the last product and the logits, row by row."""


class PagedModel:
    """One compiled model and its one request: steps run one at a time.

    Raises:
        UnsupportedFeature: the model is no decoder whose attention can be paged.
        ConfigError: OpenVINO refuses the properties.
    """

    def __init__(
        self,
        model: ov.Model,
        windows: Sequence[int] | None,
        properties: Mapping[str, Any],
    ) -> None:
        _check_stateful(model)
        join_projections(model)
        _make_paged(model)
        if windows is not None:
            _set_windows(model, windows)
        _select_rows(model)
        self._compiled = _compile(model, properties)
        self._request = self._compiled.create_infer_request()
        ports = {port.any_name: port for port in self._compiled.inputs}
        self._indices = {
            name: index
            for index, port in enumerate(self._compiled.inputs)
            for name in port.names
        }
        self._buffers = InputBuffers(self._set)
        self.num_layers: Final = sum(name.startswith("key_cache.") for name in ports)
        self.key_cell: Final = _one_shape(ports, "key_cache", self.num_layers)
        self.value_cell: Final = _one_shape(ports, "value_cache", self.num_layers)
        self.vocab_size: Final = int(
            self._compiled.output(0).get_partial_shape()[-1].get_length()
        )

    def bind(self, pool: KVPool) -> None:
        """Give every layer its cache: the pool's own memory, from here on."""
        for layer in range(self.num_layers):
            self._set(f"key_cache.{layer}", pool.key_tensor(layer))
            self._set(f"value_cache.{layer}", pool.value_tensor(layer))

    def run(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Run one step.

        Returns:
            float32 ``[R, vocab_size]``, OpenVINO's memory: valid until the next run.
        """
        self._buffers.write(inputs.as_dict())
        # Shared: the wrapper would copy the logits, 6 MB at 32 rows of 49,152.
        self._request.infer(share_outputs=True)
        logits: NDArray[np.float32] = self._request.get_output_tensor(0).data
        return logits.reshape(-1, self.vocab_size)

    def _set(self, name: str, tensor: ov.Tensor) -> None:
        self._request.set_input_tensor(self._indices[name], tensor)


def _check_stateful(model: ov.Model) -> None:
    names = {name for port in model.inputs for name in port.names}
    outputs = {name for port in model.outputs for name in port.names}
    is_decoder = "input_ids" in names and "logits" in outputs
    if not is_decoder or not model.get_sinks():
        raise UnsupportedFeature(
            f"executor openvino: the model has {len(model.get_sinks())} states, inputs "
            f"{', '.join(sorted(names))} and outputs {', '.join(sorted(outputs))}; it "
            "needs input_ids, logits and its cache as state, as optimum-cli export "
            "openvino --task text-generation-with-past writes it"
        )


def _make_paged(model: ov.Model) -> None:
    """Replace states and attention by paged attention over cache inputs."""
    try:
        paged_attention_transformation(model)
    except RuntimeError as error:
        raise UnsupportedFeature(
            "executor openvino: the model's attention cannot be paged: "
            f"{str(error)[:500]}"
        ) from error
    left = sorted({n for p in model.inputs for n in p.names} & {"attention_mask"})
    if left or model.get_sinks():
        raise UnsupportedFeature(
            "executor openvino: the model keeps state or a mask outside of attention "
            f"({len(model.get_sinks())} states, inputs {left})"
        )


def _set_windows(model: ov.Model, windows: Sequence[int]) -> None:
    """Write each layer's sliding window; the transformation knows few mask patterns."""
    for node in model.get_ops():
        if node.get_type_name() != "PagedAttentionExtension":
            continue
        cache = node.input_value(_CACHE_INPUT).get_node().get_friendly_name()
        window = windows[int(cache.rpartition(".")[2])]
        constant = ops.constant(np.array(window, dtype=np.int32))
        node.input(_WINDOW_INPUT).replace_source_output(constant.output(0))


def _select_rows(model: ov.Model) -> None:
    """Compute logits for chosen tokens only: gather before the last product."""
    rows = ops.parameter(ov.PartialShape([-1]), dtype=ov.Type.i64, name=ROWS_INPUT)
    rows.output(0).get_tensor().add_names({ROWS_INPUT})
    target = _last_product(model).input(0)
    source = target.get_source_output()
    chosen = ops.gather(source, rows, ops.constant(0))
    target.replace_source_output(chosen.output(0))
    model.add_parameters([rows])
    model.validate_nodes_and_infer_types()


def _last_product(model: ov.Model) -> Any:
    """Return the node that makes the logits, or the output itself if it is hidden."""
    result = model.output("logits").get_node()
    node = result.input_value(0).get_node()
    while node.get_type_name() in _THROUGH:
        node = node.input_value(0).get_node()
    return node if node.get_type_name() == "MatMul" else result


def _compile(model: ov.Model, properties: Mapping[str, Any]) -> ov.CompiledModel:
    try:
        return core().compile_model(model, DEVICE, dict(properties))
    except RuntimeError as error:
        shown = ", ".join(f"{name}={value}" for name, value in properties.items())
        raise ConfigError(
            f"executor openvino: OpenVINO does not compile the model with {shown}: "
            f"{_last_line(error)}"
        ) from error


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


def _one_shape(ports: Mapping[str, Any], name: str, num_layers: int) -> CellShape:
    """Return the cell of all layers, which must be the same in each."""
    cells = set()
    for layer in range(num_layers):
        port = ports[f"{name}.{layer}"]
        dims = tuple(size.get_length() for size in list(port.get_partial_shape())[1:])
        cells.add((dims, port.get_element_type()))
    if len(cells) != 1:
        raise UnsupportedFeature(
            f"executor openvino: {name} differs by layer ({len(cells)} shapes); one "
            "pool holds one"
        )
    dims, element_type = cells.pop()
    return CellShape(dims, element_type)
