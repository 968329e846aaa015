"""Weights of several products as those of one, in whatever form they are stored.

A weight is a small graph over constants: plain numbers, or numbers of few bits that are
converted, shifted and scaled. Graphs of equal form are joined constant by constant
along the output channels, the first axis.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13 as ops

_BINARY: Final = {"Multiply": ops.multiply, "Subtract": ops.subtract}


def join_weights(nodes: Sequence[Any], widths: Sequence[int]) -> Any:
    """Join equal graphs along the first axis; ``None`` if they cannot be.

    Args:
        nodes: the weights' last nodes, one a product.
        widths: output channels of each.
    """
    first = nodes[0]
    kind, element_type = first.get_type_name(), first.get_output_element_type(0)
    for node in nodes[1:]:
        is_alike = node.get_type_name() == kind
        if not is_alike or node.get_output_element_type(0) != element_type:
            return None
    if kind == "Constant":
        return _join_constants(nodes, widths)
    # A reshape's other input is its shape, which is made anew.
    num_inputs = 1 if kind == "Reshape" else first.get_input_size()
    inputs = [
        join_weights([node.input_value(index).get_node() for node in nodes], widths)
        for index in range(num_inputs)
    ]
    if any(value is None for value in inputs):
        return None
    return _rebuild(nodes, inputs, widths)


def _rebuild(nodes: Sequence[Any], inputs: Sequence[Any], widths: Sequence[int]) -> Any:
    """The nodes' operation on joined inputs; ``None`` if it is not known here."""
    kind, output = nodes[0].get_type_name(), nodes[0].output(0)
    if kind == "Convert":
        return ops.convert(inputs[0], output.get_element_type())
    if kind in _BINARY:
        return _BINARY[kind](*inputs)
    if kind == "Reshape":
        shapes = [tuple(node.get_output_shape(0)) for node in nodes]
        if not _are_rows(shapes, widths):
            return None
        shape = np.array([sum(widths), *shapes[0][1:]], dtype=np.int64)
        return ops.reshape(inputs[0], ops.constant(shape), special_zero=False)
    return None


def _are_rows(shapes: Sequence[tuple[int, ...]], widths: Sequence[int]) -> bool:
    """Whether each holds a row for every output channel of its product, all alike."""
    pairs = zip(shapes, widths, strict=True)
    return all(shape and shape == (width, *shapes[0][1:]) for shape, width in pairs)


def _join_constants(nodes: Sequence[Any], widths: Sequence[int]) -> Any:
    shapes = [tuple(node.get_output_shape(0)) for node in nodes]
    if not _are_rows(shapes, widths):
        # One number for the whole matrix can be shared if it is the same in all.
        is_same = all(np.array_equal(node.data, nodes[0].data) for node in nodes)
        return nodes[0] if is_same and len(set(shapes)) == 1 else None
    shape = ov.Shape([sum(widths), *shapes[0][1:]])
    tensor = ov.Tensor(nodes[0].get_output_element_type(0), shape)
    # As bytes: two 4-bit numbers share one, and bfloat16 is no type of numpy's.
    parts = [_bytes_of(node) for node in nodes]
    if sum(map(len, parts)) != tensor.byte_size:
        return None
    _bytes_of(tensor)[:] = np.concatenate(parts)
    return ops.constant(tensor)


def _bytes_of(holder: Any) -> Any:
    return holder.data.reshape(-1).view(np.uint8)
