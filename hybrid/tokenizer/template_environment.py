"""The Jinja in which chat templates run: a sandbox in which everything is counted.

Bounded are the passes of all loops, the calls (of macros, functions and methods), the
filters, tests and operators, and the text that is put out: together they take at most
``MAX_TEMPLATE_STEPS``, work on long values more of them. Bounded is what each of these
makes: ``MAX_RENDERED_CHARACTERS`` for text and for all that a list holds,
``MAX_INTEGER_BITS`` for numbers; what may be larger than its operands is checked before
it is made. What remains is straight-line code, as long as the source is. Filters and
methods whose work does not follow their input's size are left out.
"""

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from .template_budget import TemplateBudget, TemplateLimit
from .template_growth import (
    check_binary,
    check_brace_format,
    check_growth,
    check_method_growth,
)
from .template_metering import (
    COMPARED,
    CONCATENATED,
    METERED,
    WEIGHED,
    MeteringGenerator,
)

_LEFT_OUT: Final = (
    *("pprint", "striptags", "urlencode", "urlize", "wordcount", "wordwrap"),
    *("xmlattr", "filesizeformat", "forceescape"),
)
_CONSTANT_TIME: Final = frozenset(
    {"abs", "attr", "count", "d", "default", "first", "last", "length"}
)
_PER_ITEM: Final = frozenset(
    {"batch", "items", "list", "map", "random", "reject", "rejectattr", "reverse"}
    | {"select", "selectattr", "slice", "sum"}
)
"""Filters that look at each item, not into it."""
_PER_CHARACTER: Final = _PER_ITEM | {
    *("groupby", "join", "max", "min", "sort", "unique"),
}
"""Filters that take a string as the list of its characters."""
_COMPARING: Final = frozenset(
    {"!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in"}
    | {"le", "lessthan", "lower", "lt", "ne", "upper"}
)
"""Tests that look at all of their operands."""
# A list literal would take a line a name.
_STRING_METHODS: Final = """
capitalize casefold center count endswith find index isalnum isalpha isascii isdecimal
isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust
lower lstrip partition removeprefix removesuffix replace rfind rindex rjust rpartition
rsplit rstrip split splitlines startswith strip swapcase title upper zfill
""".split()  # noqa: SIM905
_METHODS: Final[Mapping[type, frozenset[str]]] = {
    str: frozenset(_STRING_METHODS),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
    int: frozenset(),
    float: frozenset(),
    bytes: frozenset(),
}
"""What a template may call on Python's own types."""
_MAX_INDENT: Final = 16
_MAX_DATE_CHARACTERS: Final = 1000


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """What transformers gives to templates, for one rendering.

    Source: transformers 5.24, ``utils/chat_template_utils.py``.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, budget: TemplateBudget) -> None:
        """Charge everything to ``budget``."""
        self._budget: Final = budget
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
            # Folding constants would run filters while compiling.
            optimized=False,
            finalize=self._put_out,
        )
        self.code_generator_class = MeteringGenerator
        self.filters["tojson"] = self._to_json
        for name in _LEFT_OUT:
            del self.filters[name]
        for name, filter_ in self.filters.items():
            self.filters[name] = self._bounded_filter(name, filter_)
        for name in _COMPARING:
            self.tests[name] = self._bounded_test(self.tests[name])
        self.filters[METERED] = self._budget.meter
        self.filters[WEIGHED] = self._weighed
        self.filters[COMPARED] = self._compared
        self.filters[CONCATENATED] = self._concatenated
        del self.globals["lipsum"]
        self.globals |= {
            "range": range,
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator, unless that makes something huge."""
        is_concatenation = operator == "+" and isinstance(left, list | tuple)
        self._budget.charge(left, right, deep=not is_concatenation)
        check_binary(self._budget, operator, left, right)
        result = super().call_binop(context, operator, left, right)
        self._budget.charge(result, deep=False)
        return result

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call and pay for it; loops that call themselves go on counting."""
        if isinstance(function, LoopContext) and args:
            args = (self._budget.meter(args[0]), *args[1:])
        owner = getattr(function, "__self__", None)
        name = getattr(function, "__name__", "")
        if isinstance(owner, str):
            self._budget.charge(owner)
            check_method_growth(self._budget, name, (owner, *args), kwargs)
        elif isinstance(owner, list | tuple):
            self._budget.charge(owner)
        is_passed_on = isinstance(function, Macro | LoopContext | type)
        self._budget.charge(*args, *kwargs.values(), deep=not is_passed_on)
        result = super().call(context, function, *args, **kwargs)
        self._budget.charge(result, deep=False)
        return result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may read it: of Python's own types, what is listed."""
        for kind, names in _METHODS.items():
            if isinstance(obj, kind):
                return attr in names
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Bound ``str.format`` too, which the sandbox treats apart."""
        format_ = super().wrap_str_format(value)
        if format_ is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            self._budget.charge(value.__self__)
            check_brace_format(self._budget, value.__self__, args, kwargs)
            return format_(*args, **kwargs)

        return checked

    @pass_context
    def _put_out(self, _context: Any, value: Any) -> Any:
        self._budget.charge(value)
        return value

    def _weighed(self, value: Any) -> Any:
        self._budget.charge(value, deep=False)
        return value

    def _compared(self, value: Any) -> Any:
        self._budget.charge(value)
        return value

    def _concatenated(self, values: list[Any]) -> str:
        self._budget.charge(*values)
        self._budget.allow(sum(map(self._budget.weigh, values)))
        return "".join(map(str, values))

    def _bounded_filter(self, name: str, filter_: Callable[..., Any]) -> Any:
        budget = self._budget
        first = int(hasattr(filter_, "jinja_pass_arg"))  # after Jinja's own argument

        @functools.wraps(filter_)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            if name in _CONSTANT_TIME:
                budget.spend()
                return filter_(*args, **kwargs)
            values = args[first:]
            if name in _PER_CHARACTER and isinstance(values[0], str):
                budget.spend(len(values[0]))
            budget.charge(*values, *kwargs.values(), deep=name not in _PER_ITEM)
            check_growth(budget, name, values, kwargs)
            result = filter_(*args, **kwargs)
            if isinstance(result, Iterator):
                return budget.drain(result)
            budget.charge(result, deep=False)
            return result

        return bounded

    def _bounded_test(self, test: Any) -> Any:
        @functools.wraps(test)
        def bounded(*args: Any) -> Any:
            self._budget.charge(*args)
            return test(*args)

        return bounded

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # Not jinja2's own, which escapes for HTML.
        width = len(indent) if isinstance(indent, str) else indent or 0
        if width > _MAX_INDENT:
            raise TemplateLimit(f"tojson indents by {_MAX_INDENT} at most")
        pieces = json.JSONEncoder(
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        ).iterencode(value)
        return "".join(bounded_pieces(self._budget, pieces))


def bounded_pieces(budget: TemplateBudget, pieces: Iterable[str]) -> Iterator[str]:
    """Pass on the pieces of a text until it gets too long.

    Raises:
        TemplateLimit: it does.
    """
    length = 0
    for piece in pieces:
        length += len(piece)
        budget.allow(length)
        yield piece


class _GenerationTag(Extension):
    """``{% generation %}``: marks an assistant's text for training; plain here."""

    tags = {"generation"}  # noqa: RUF012  (as jinja2 declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return what stands between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    def __repr__(self) -> str:
        # Not what it holds: namespaces may hold one another, many times over.
        return "<Namespace>"


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format_: str) -> str:
    if len(str(format_)) > _MAX_DATE_CHARACTERS:
        raise TemplateLimit(
            f"a date format has {_MAX_DATE_CHARACTERS} characters at most"
        )
    return datetime.now().astimezone().strftime(format_)
