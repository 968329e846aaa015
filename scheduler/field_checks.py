"""Checks of single values that a caller passed: range, type, one shape.

Each returns the value in the one shape the engine keeps, or raises naming the field.
Numbers of other libraries (numpy's scalars) become Python's own.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from itertools import islice
from numbers import Integral, Real
from types import MappingProxyType
from typing import Final

from .errors import InvalidRequest
from .shown_value import shown

MAX_DIGITS: Final = 20
"""Of a token id in text; more can be no id, and Python refuses to read thousands."""


def fault(name: str, value: object, wanted: str, *, item: str = "") -> InvalidRequest:
    """The error for a field whose value (or whose ``item``) is not as ``wanted``."""
    return InvalidRequest(
        f"{name}{item} is {shown(value)}, must be {wanted}", field=name, value=value
    )


def as_int(
    name: str, value: object, low: int, high: int | None = None, *, item: str = ""
) -> int:
    """An integer from ``low`` to ``high`` (``None``: without end)."""
    limits = f", {low} or more" if high is None else f" from {low} to {high}"
    wanted = f"an integer{limits}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise fault(name, value, wanted, item=item)
    number = int(value)
    if number < low or (high is not None and number > high):
        raise fault(name, value, wanted, item=item)
    return number


def as_float(
    name: str, value: object, low: float, high: float = math.inf, *, item: str = ""
) -> float:
    """A finite number from ``low`` to ``high``, both included."""
    limits = f"from {low:g} to {high:g}" if math.isfinite(high) else f"of {low:g} up"
    wanted = f"a finite number {limits}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise fault(name, value, wanted, item=item)
    try:
        number = float(value)
    except OverflowError:
        raise fault(name, value, wanted, item=item) from None
    if not math.isfinite(number) or not low <= number <= high:
        raise fault(name, value, wanted, item=item)
    return number


def as_positive_float(name: str, value: object, high: float = math.inf) -> float:
    """A finite number above 0, up to ``high``."""
    limit = f", at most {high:g}" if math.isfinite(high) else ""
    try:
        number = as_float(name, value, 0.0, high)
    except InvalidRequest:
        number = 0.0
    if number == 0.0:
        raise fault(name, value, f"a finite number above 0{limit}")
    return number


def as_bool(name: str, value: object) -> bool:
    """``True`` or ``False``; nothing that is merely true or false in a condition."""
    if not isinstance(value, bool):
        raise fault(name, value, "True or False")
    return value


def check_count(name: str, count: int, limit: int) -> None:
    """Refuse more entries than a field may have."""
    if count > limit:
        raise InvalidRequest(
            f"{name} has {count} entries, at most {limit}", field=name, value=count
        )


def as_texts(
    name: str, value: object, max_entries: int, max_characters: int
) -> tuple[str, ...]:
    """A tuple of texts, none empty, each of whole characters; from one text or many.

    What is too much is refused by its length, before anything walks it.
    """
    if value is None:
        return ()
    texts = (value,) if isinstance(value, str) else value
    if isinstance(texts, (bytes, bytearray)) or not isinstance(texts, Sequence):
        raise fault(name, value, "a text or a sequence of texts")
    check_count(name, len(texts), max_entries)
    for text in texts:
        if not isinstance(text, str):
            raise fault(name, text, "a text or a sequence of texts", item=" entry")
        if not text:
            raise fault(name, text, "free of empty texts", item=" entry")
        if len(text) > max_characters:
            raise InvalidRequest(
                f"{name} has an entry of {len(text)} characters, at most "
                f"{max_characters}",
                field=name,
                value=len(text),
            )
        if not _is_whole(text):
            raise fault(name, text, "free of lone surrogates", item=" entry")
    return tuple(texts)


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_ids(name: str, value: object, max_entries: int) -> tuple[int, ...]:
    """A tuple of token ids, none negative."""
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise fault(name, value, "a sequence of token ids")
    if isinstance(value, Sized):
        check_count(name, len(value), max_entries)
    # Some tell no length before they are read.
    ids = tuple(islice(value, max_entries + 1))
    check_count(name, len(ids), max_entries)
    return tuple(as_int(name, token_id, 0, item=" entry") for token_id in ids)


def as_bias(
    name: str, value: object, limit: float, max_entries: int
) -> Mapping[int, float]:
    """A read-only mapping of token ids to numbers from ``-limit`` to ``limit``."""
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        raise fault(name, value, "a mapping of token ids to numbers")
    check_count(name, len(value), max_entries)
    bias: dict[int, float] = {}
    for key, amount in value.items():
        # OpenAI's JSON has the ids as text.
        is_text = isinstance(key, str) and key.isdecimal() and len(key) <= MAX_DIGITS
        token_id = int(key) if is_text else key
        token_id = as_int(name, token_id, 0, item=" key")
        if token_id in bias:
            raise fault(name, key, "free of ids that come twice", item=" key")
        bias[token_id] = as_float(name, amount, -limit, limit, item=f"[{token_id}]")
    return MappingProxyType(bias)
