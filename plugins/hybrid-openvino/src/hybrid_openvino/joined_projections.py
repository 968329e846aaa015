"""Makes one product of the query, key and value projections of each layer.

Three small products in a row cost three starts, and at few tokens a start costs more
than the key's whole matrix. Joined along the output channels they give the same bits:
each channel keeps its numbers, its scale and its order of summation.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13 as ops

_MIN_PRODUCTS: Final = 3
"""Query, key and value. The pairs of gated MLPs gained nothing: their halves must be
copied apart again."""
_BINARY: Final = {"Multiply": ops.multiply, "Subtract": ops.subtract}


def join_projections(model: ov.Model) -> int:
    """Join products of three or more constant matrices with the same input.

    Products whose weights are not stored alike stay as they are.

    Returns:
        How many groups were joined.
    """
    groups: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for node in model.get_ordered_ops():
        if _is_projection(node):
            source = node.input_value(0)
            name = source.get_node().get_friendly_name()
            groups[name, source.get_index()].append(node)
    candidates = [group for group in groups.values() if len(group) >= _MIN_PRODUCTS]
    num_joined = sum(_join(group) for group in candidates)
    model.validate_nodes_and_infer_types()
    return num_joined


def _is_projection(node: Any) -> bool:
    if node.get_type_name() != "MatMul":
        return False
    attributes = node.get_attributes()
    return not attributes["transpose_a"] and bool(attributes["transpose_b"])


def _join(products: Sequence[Any]) -> bool:
    """Replace products by one, split by width; ``False``: they were left alone."""
    weights = _concatenated([node.input_value(1).get_node() for node in products])
    if weights is None:
        return False
    widths = [node.input_value(1).get_partial_shape()[0] for node in products]
    joined = ops.matmul(products[0].input_value(0), weights, False, True)
    ends: Sequence[Any] = products
    biased = _biased(products)
    if biased is not None:
        ends, bias = biased
        joined = ops.add(joined, bias)
    lengths = np.array([width.get_length() for width in widths], dtype=np.int64)
    parts = ops.variadic_split(joined, ops.constant(-1), ops.constant(lengths))
    for index, end in enumerate(ends):
        end.output(0).replace(parts.output(index))
    return True


def _biased(products: Sequence[Any]) -> tuple[Sequence[Any], Any] | None:
    """Find the additions of biases that follow, and the biases joined."""
    additions = []
    for node in products:
        consumers = [target.get_node() for target in node.output(0).get_target_inputs()]
        if [consumer.get_type_name() for consumer in consumers] != ["Add"]:
            return None
        additions += consumers
    biases = [
        _other_input(add, node) for add, node in zip(additions, products, strict=True)
    ]
    arrays = [_constant_values(bias) for bias in biases]
    if any(array is None for array in arrays):
        return None
    return additions, ops.constant(np.concatenate(arrays, axis=-1))


def _other_input(addition: Any, product: Any) -> Any:
    first, second = (addition.input_value(index).get_node() for index in range(2))
    is_first = first.get_friendly_name() == product.get_friendly_name()
    return second if is_first else first


def _constant_values(node: Any) -> Any:
    """Values of a constant, also behind a conversion, in float32; else ``None``."""
    if node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    if node.get_type_name() != "Constant":
        return None
    return np.asarray(node.get_data(dtype=np.float32))


def _concatenated(nodes: Sequence[Any]) -> Any:
    """Join equal graphs over constants along axis 0; ``None`` if they differ."""
    first = nodes[0]
    kind = first.get_type_name()
    element_type = first.get_output_element_type(0)
    for node in nodes:
        is_alike = node.get_type_name() == kind
        if not is_alike or node.get_output_element_type(0) != element_type:
            return None
    if kind == "Constant":
        return _concatenated_constants(nodes)
    inputs = [
        _concatenated([node.input_value(index).get_node() for node in nodes])
        for index in range(first.get_input_size())
        if kind != "Reshape" or index == 0
    ]
    if any(value is None for value in inputs):
        return None
    return _rebuilt(nodes, inputs)


def _rebuilt(nodes: Sequence[Any], inputs: Sequence[Any]) -> Any:
    """The first node's operation on joined inputs; ``None`` if it is not known here."""
    kind, output = nodes[0].get_type_name(), nodes[0].output(0)
    if kind == "Convert":
        return ops.convert(inputs[0], output.get_element_type())
    if kind in _BINARY:
        return _BINARY[kind](*inputs)
    if kind == "Reshape":
        shapes = [list(node.get_output_shape(0)) for node in nodes]
        shape = np.array([sum(s[0] for s in shapes), *shapes[0][1:]], dtype=np.int64)
        return ops.reshape(inputs[0], ops.constant(shape), special_zero=False)
    return None


def _concatenated_constants(nodes: Sequence[Any]) -> Any:
    shapes = [list(node.get_output_shape(0)) for node in nodes]
    if any(len(shape) < 2 or shape[1:] != shapes[0][1:] for shape in shapes):
        same = all(np.array_equal(node.data, nodes[0].data) for node in nodes)
        return nodes[0] if same and shapes.count(shapes[0]) == len(nodes) else None
    element_type = nodes[0].get_output_element_type(0)
    shape = [sum(shape[0] for shape in shapes), *shapes[0][1:]]
    tensor = ov.Tensor(element_type, ov.Shape(shape))
    # As bytes: two 4-bit numbers share one, bfloat16 is no type of numpy's.
    packed = [_bytes_of(node) for node in nodes]
    if sum(map(len, packed)) != tensor.byte_size:
        return None
    _bytes_of(tensor)[:] = np.concatenate(packed)
    return ops.constant(tensor, shared_memory=False)


def _bytes_of(holder: Any) -> Any:
    return holder.data.reshape(-1).view(np.uint8)
