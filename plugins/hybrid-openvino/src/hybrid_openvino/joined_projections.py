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

from .joined_weights import join_weights

_MIN_PRODUCTS: Final = 3
"""Query, key and value. The pairs of gated MLPs gained nothing: their halves must be
copied apart again."""


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
            groups[source.get_node().get_name(), source.get_index()].append(node)
    candidates = [group for group in groups.values() if len(group) >= _MIN_PRODUCTS]
    num_joined = sum(_join(group) for group in candidates)
    model.validate_nodes_and_infer_types()
    return num_joined


def _is_projection(node: Any) -> bool:
    """Whether it multiplies by a transposed matrix of known height."""
    if node.get_type_name() != "MatMul":
        return False
    attributes = node.get_attributes()
    weights = node.input_value(1).get_partial_shape()
    is_matrix = weights.rank.is_static and len(weights) == 2
    is_plain = not attributes["transpose_a"] and attributes["transpose_b"]
    return bool(is_plain and is_matrix and weights[0].is_static)


def _join(products: Sequence[Any]) -> bool:
    """Replace products by one, split by width; ``False``: they were left alone."""
    widths = [
        node.input_value(1).get_partial_shape()[0].get_length() for node in products
    ]
    weights = join_weights(
        [node.input_value(1).get_node() for node in products], widths
    )
    if weights is None:
        return False
    joined = ops.matmul(products[0].input_value(0), weights, False, True)
    ends: Sequence[Any] = products
    biased = _biased(products, widths)
    if biased is not None:
        ends, bias = biased
        joined = ops.add(joined, bias)
    lengths = ops.constant(np.array(widths, dtype=np.int64))
    parts = ops.variadic_split(joined, ops.constant(-1), lengths)
    for index, end in enumerate(ends):
        end.output(0).replace(parts.output(index))
    return True


def _biased(
    products: Sequence[Any], widths: Sequence[int]
) -> tuple[Sequence[Any], Any] | None:
    """Find the additions of biases that follow, and the biases joined.

    ``None``: something else follows a product; then nothing but products is joined.
    """
    additions, biases = [], []
    for node, width in zip(products, widths, strict=True):
        consumers = [target.get_node() for target in node.output(0).get_target_inputs()]
        if [consumer.get_type_name() for consumer in consumers] != ["Add"]:
            return None
        bias = _values(_other_input(consumers[0], node))
        if bias is None or bias.size != width or bias.shape[-1:] != (width,):
            return None
        additions += consumers
        biases.append(bias.reshape(-1))
    element_type = products[0].get_output_element_type(0)
    return additions, ops.constant(np.concatenate(biases), dtype=element_type)


def _other_input(addition: Any, product: Any) -> Any:
    first, second = (addition.input_value(index).get_node() for index in range(2))
    return second if first.get_name() == product.get_name() else first


def _values(node: Any) -> Any:
    """Values of a constant, also behind a conversion, in float32; else ``None``."""
    if node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    if node.get_type_name() != "Constant":
        return None
    return np.asarray(node.get_data(dtype=np.float32))
