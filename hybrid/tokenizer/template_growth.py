"""How much text an operation of a chat template makes, known before it is made.

Every other operation makes about as much as it is given, and is checked afterwards.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from .template_budget import MAX_INTEGER_BITS, TemplateBudget, TemplateLimit

_NUMBER: Final = re.compile(r"\d+")
_WIDTH_FROM_VALUE: Final = re.compile(r"%[^A-Za-z%]*\*")
_NESTED_FIELD: Final = re.compile(r"\{[^{}]*\{")
_MAX_DIGITS: Final = 16
_TEXT_OF_ITEM: Final = 16
"""An item of a list takes the memory of about as many characters."""
_SLOW_CHARACTERS: Final = 16
"""A step's worth, where text is taken apart instead of copied."""


def check_binary(budget: TemplateBudget, sign: str, left: Any, right: Any) -> None:
    """Check what ``left sign right`` makes.

    Raises:
        TemplateLimit: it is too large.
    """
    if sign == "%" and isinstance(left, str):
        _check_percent(budget, left, right)
    if sign == "*":
        for value, count in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple) and isinstance(count, int):
                budget.allow(budget.weigh(value) * max(count, 0))
    if isinstance(left, int) and isinstance(right, int):
        num_bits = {
            "*": left.bit_length() + right.bit_length(),
            "**": left.bit_length() * right,
        }.get(sign, 0)
        if num_bits > MAX_INTEGER_BITS:
            raise TemplateLimit(f"it makes an integer of over {MAX_INTEGER_BITS} bits")


def check_brace_format(
    budget: TemplateBudget, text: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Check what ``text.format(*args, **kwargs)`` makes.

    Raises:
        TemplateLimit: it is too large.
    """
    if _NESTED_FIELD.search(text.replace("{{", "")):
        raise TemplateLimit("a width within a format comes from a value")
    num_fields = text.count("{")
    budget.spend(num_fields)
    budget.allow(
        _widths(budget, text) + num_fields * (budget.weigh(args) + budget.weigh(kwargs))
    )


def check_growth(
    budget: TemplateBudget, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Check what the filter called ``name`` makes.

    Args:
        budget: the rendering's.
        name: most make nothing larger than what they get.
        args: what it is called with, the value first.
        kwargs: likewise.

    Raises:
        TemplateLimit: it is too large.
        TypeError: it cannot be called like that.
    """
    if name in _GROWTH:
        _GROWTH[name](budget, *args, **kwargs)


def check_method_growth(
    budget: TemplateBudget, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """The same for a method of a string, which comes first in ``args``."""
    if name == "join":
        args = args[::-1]
    check_growth(budget, name, args, kwargs)


def _widths(budget: TemplateBudget, text: str) -> int:
    budget.spend(len(text) // _SLOW_CHARACTERS)
    # A number of very many digits is no width; reading it would take long.
    return len(text) + sum(
        int(number) if len(number) < 10 else 10**9 for number in _NUMBER.findall(text)
    )


def _check_percent(budget: TemplateBudget, text: str, values: object) -> None:
    if _WIDTH_FROM_VALUE.search(text):
        raise TemplateLimit("a width within a format comes from a value")
    budget.allow(_widths(budget, text) + text.count("%") * budget.weigh(values))


def _format(budget: TemplateBudget, value: object, *args: Any, **kwargs: Any) -> None:
    _check_percent(budget, str(value), kwargs or args)


def _padding(
    budget: TemplateBudget, _value: object, width: int = 0, *_fill: object
) -> None:
    budget.allow(width)


def _indent(
    budget: TemplateBudget, value: object, width: int | str = 4, *_: Any, **__: Any
) -> None:
    text = str(value)
    budget.spend(len(text) // _SLOW_CHARACTERS)
    num_characters = len(width) if isinstance(width, str) else width
    budget.allow((len(text) + 1) * num_characters)


def _replace(
    budget: TemplateBudget,
    value: object,
    old: object,
    new: object,
    *_count: object,
    **__: object,
) -> None:
    text = str(value)
    budget.allow(len(text) + text.count(str(old)) * len(str(new)))


def _join(
    budget: TemplateBudget, items: Any, d: object = "", *_: Any, **__: Any
) -> None:
    num_items = operator.length_hint(items, 0)
    budget.allow(budget.weigh(items) + num_items * len(str(d)))


def _batch(
    budget: TemplateBudget, _value: object, linecount: int, *_: Any, **__: Any
) -> None:
    budget.allow(_TEXT_OF_ITEM * linecount)


def _slice(
    budget: TemplateBudget, _value: object, slices: int, *_: Any, **__: Any
) -> None:
    budget.allow(_TEXT_OF_ITEM * slices)


def _round(
    _budget: TemplateBudget, _value: object, precision: int = 0, *_: Any, **__: Any
) -> None:
    if abs(precision) > _MAX_DIGITS:
        raise TemplateLimit(f"rounds to {_MAX_DIGITS} digits at most")


def _sum(
    _budget: TemplateBudget,
    _value: object,
    attribute: object = None,  # noqa: ARG001  (may be passed by name)
    start: object = 0,
) -> None:
    if not isinstance(start, int | float):  # lists: each sum is a copy
        raise TemplateLimit("adds numbers only")


def _pieces(
    budget: TemplateBudget,
    text: str,
    sep: object = None,
    maxsplit: int = -1,
    **_: object,
) -> None:
    if not isinstance(sep, str) or not sep:
        num_pieces = len(text) // _SLOW_CHARACTERS
    else:
        num_pieces = text.count(sep)
    budget.spend(num_pieces if maxsplit < 0 else min(num_pieces, maxsplit))


def _title(budget: TemplateBudget, value: object) -> None:
    budget.allow(_TEXT_OF_ITEM * len(str(value)))  # a list of its words


_GROWTH: Final[Mapping[str, Callable[..., None]]] = {
    "center": _padding,
    "ljust": _padding,
    "rjust": _padding,
    "zfill": _padding,
    "format": _format,
    "indent": _indent,
    "replace": _replace,
    "join": _join,
    "batch": _batch,
    "slice": _slice,
    "round": _round,
    "sum": _sum,
    "split": _pieces,
    "rsplit": _pieces,
    "splitlines": _pieces,
    "title": _title,
}
