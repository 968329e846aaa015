"""Messages that nobody means well by, made from a protocol's own descriptors."""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor as Field
from hypothesis import strategies as st

MAX_DEPTH = 3
"""Of messages in messages."""

_FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    1e-45,
    1e38,
    -1e38,
    *map(float, ("nan", "inf", "-inf")),
)
_TEXTS = (
    "",
    "\0",
    "\ufeff\u202e",
    "\N{GRINNING FACE}\u0301" * 50,
    "a" * 20_000,
    "(" * 2_000,
    "(a+)+$",
    "a{1,99999}",
    "root ::= root",
    '{"$ref": "#"}',
    '{"type": "array", "minItems": 1000000000}',
    "[" * 5_000,
    "{}",
    "\\",
    "../../etc/passwd",
    "127.0.0.1:1",
)


def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    edges = {low, low + 1, -1, 0, 1, 2, 7, 255, 256, 258, high - 1, high}
    return st.sampled_from([value for value in sorted(edges) if low <= value <= high])


_BY_KIND = {
    Field.CPPTYPE_INT32: _integers(-(2**31), 2**31 - 1),
    Field.CPPTYPE_INT64: _integers(-(2**63), 2**63 - 1),
    Field.CPPTYPE_UINT32: _integers(0, 2**32 - 1),
    Field.CPPTYPE_UINT64: _integers(0, 2**64 - 1),
    Field.CPPTYPE_FLOAT: st.sampled_from(_FLOATS),
    Field.CPPTYPE_DOUBLE: st.sampled_from(_FLOATS),
    Field.CPPTYPE_BOOL: st.booleans(),
    Field.CPPTYPE_ENUM: _integers(-(2**31), 2**31 - 1),
    Field.CPPTYPE_STRING: st.sampled_from(_TEXTS) | st.text(max_size=20),
}


def _values(field: Any) -> st.SearchStrategy[Any]:
    """Values of a field that is no message."""
    if field.type == Field.TYPE_BYTES:
        return st.binary(max_size=20) | st.sampled_from(_TEXTS).map(str.encode)
    return _BY_KIND[field.cpp_type]


@st.composite
def changed(draw: st.DrawFn, base: Any, max_changes: int = 3) -> Any:
    """A message with a few of its fields set to what they should not be."""
    message = type(base)()
    message.CopyFrom(base)
    for _ in range(draw(st.integers(1, max_changes))):
        _change(draw, message, MAX_DEPTH)
    return message


def _change(draw: st.DrawFn, message: Any, depth: int) -> None:
    """Set one field, of the message or of one within it; or leave a message empty."""
    fields = list(message.DESCRIPTOR.fields)
    if not fields or not depth:
        return
    field = draw(st.sampled_from(fields))
    kind = field.message_type
    place = getattr(message, field.name)
    if kind is None and not field.is_repeated:
        setattr(message, field.name, draw(_values(field)))
    elif kind is None:
        message.ClearField(field.name)
        values = draw(st.lists(_values(field), max_size=5))
        place.extend(values * draw(st.sampled_from([1, 1, 500])))
    elif kind.GetOptions().map_entry:
        _change_entry(draw, place, kind, depth)
    else:
        within = place.add() if field.is_repeated else place
        within.SetInParent()
        _change(draw, within, depth - draw(st.integers(1, depth)))


def _change_entry(draw: st.DrawFn, entries: Any, kind: Any, depth: int) -> None:
    key = draw(_values(kind.fields_by_name["key"]))
    value = kind.fields_by_name["value"]
    if value.message_type is None:
        entries[key] = draw(_values(value))
    else:
        _change(draw, entries[key], depth - 1)
