"""Tensors of the Open Inference Protocol, as flat lists of Python values.

A tensor's values come in one of two forms: typed, within the tensor, or as bytes
beside it, little-endian, each text after its length (uint32).
"""

import math
import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from hybrid.scheduler import InvalidRequest
from hybrid.scheduler.field_checks import check_count
from hybrid.scheduler.shown_value import shown

from .kserve_messages import MESSAGES

TensorValue = bool | int | float | str

MAX_INPUTS: Final = 64
MAX_VALUES: Final = 2**18
"""Of one tensor: more ids than vocabularies have. Fields have limits of their own."""
MAX_DIMENSIONS: Final = 8
_TEXT: Final = "BYTES"
_LENGTH: Final = struct.Struct("<I")
_FORMS: Final = {
    "BOOL": ("?", "bool_contents"),
    "INT8": ("b", "int_contents"),
    "INT16": ("h", "int_contents"),
    "INT32": ("i", "int_contents"),
    "INT64": ("q", "int64_contents"),
    "UINT8": ("B", "uint_contents"),
    "UINT16": ("H", "uint_contents"),
    "UINT32": ("I", "uint_contents"),
    "UINT64": ("Q", "uint64_contents"),
    "FP32": ("f", "fp32_contents"),
    "FP64": ("d", "fp64_contents"),
    _TEXT: ("", "bytes_contents"),
}
"""By datatype: the letter of ``struct``, and the field of typed values."""


def read_inputs(request: Any) -> dict[str, list[TensorValue]]:
    """Take the input tensors of a ``ModelInferRequest`` apart.

    Raises:
        InvalidRequest: a tensor contradicts itself, or comes twice.
    """
    # Before anything walks them: this is the loop that serves everybody.
    check_count("inputs", len(request.inputs), MAX_INPUTS)
    check_count("raw_input_contents", len(request.raw_input_contents), MAX_INPUTS)
    typed = [tensor.HasField("contents") for tensor in request.inputs]
    raw = list(request.raw_input_contents)
    if raw and (any(typed) or len(raw) != len(typed)):
        raise InvalidRequest(
            f"raw_input_contents has {len(raw)} entries for {len(typed)} inputs, "
            f"{sum(typed)} of them typed: all inputs must be raw, or none",
            field="raw_input_contents",
            value=len(raw),
        )
    inputs: dict[str, list[TensorValue]] = {}
    for place, tensor in enumerate(request.inputs):
        if tensor.name in inputs:
            raise _fault(tensor.name, "comes twice")
        inputs[tensor.name] = _read(tensor, raw[place] if raw else None)
    return inputs


def _read(tensor: Any, raw: bytes | None) -> list[TensorValue]:
    name, datatype = tensor.name, tensor.datatype
    if datatype not in _FORMS:
        raise _fault(
            name, f"is of {shown(datatype)}, must be one of {', '.join(_FORMS)}"
        )
    letter, field = _FORMS[datatype]
    if raw is None:
        contents = getattr(tensor.contents, field)
        _check_count(name, len(contents))
        values = list(contents)
    elif datatype == _TEXT:
        values = list(islice(_split(name, raw), MAX_VALUES + 1))
        _check_count(name, len(values))
    elif len(raw) % struct.calcsize(letter):
        raise _fault(name, f"has {len(raw)} bytes, which are no whole {datatype}s")
    else:
        count = len(raw) // struct.calcsize(letter)
        _check_count(name, count)
        values = list(struct.unpack(f"<{count}{letter}", raw))
    shape = tensor.shape[: MAX_DIMENSIONS + 1]
    if len(shape) > MAX_DIMENSIONS or math.prod(shape) != len(values):
        raise _fault(name, f"has {len(values)} values for shape {shown(list(shape))}")
    if datatype == _TEXT:
        return [_decode(name, value) for value in values]
    return values


def _check_count(name: str, count: int) -> None:
    check_count(f"input {shown(name)}", count, MAX_VALUES)


def _split(name: str, raw: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(raw):
        start = place + _LENGTH.size
        end = start
        if start <= len(raw):
            end += _LENGTH.unpack_from(raw, place)[0]
        if end > len(raw) or start > len(raw):
            raise _fault(name, f"ends within a text, after {len(raw)} bytes")
        yield raw[start:end]
        place = end


def _decode(name: str, value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise _fault(name, "holds bytes that are no UTF-8") from None


def _fault(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"input {shown(name)} {reason}", field=name)


def write_output(
    response: Any, name: str, datatype: str, values: Sequence[TensorValue]
) -> None:
    """Add a tensor, as bytes, to a ``ModelInferResponse``.

    Args:
        response: what it is added to.
        name: of the tensor.
        datatype: of its values, by the protocol's name.
        values: one for each sample.
    """
    tensor = MESSAGES["InferOutputTensor"](
        name=name, datatype=datatype, shape=[len(values)]
    )
    if datatype == _TEXT:
        texts = [str(value).encode("utf-8", "replace") for value in values]
        raw = b"".join(_LENGTH.pack(len(text)) + text for text in texts)
    else:
        raw = struct.pack(f"<{len(values)}{_FORMS[datatype][0]}", *values)
    response.outputs.append(tensor)
    response.raw_output_contents.append(raw)
