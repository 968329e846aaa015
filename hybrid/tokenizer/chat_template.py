"""Renders a model's chat template: Jinja in a sandbox, with limits.

A template comes with a model or with a request and is a program. It sees only what it
is given, cannot change it, and can neither loop nor grow without end.
"""

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hybrid.scheduler.errors import InvalidRequest

from .chat_messages import normalize_messages

MAX_RENDERED_CHARACTERS: Final = 16 * 1024 * 1024
"""Longest text a template may give: several million tokens."""
MAX_LOOP_STEPS: Final = 1_000_000
"""Most numbers that all ``range`` calls of one rendering may yield."""
_WIDE_FORMAT: Final = re.compile(r"\d{5,}|\*")
_BOUNDED_FILTERS: Final = ("center", "indent", "wordwrap", "format", "batch", "slice")


class ChatTemplate:
    """One compiled template."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile ``source``; ``special_tokens`` are its ``bos_token`` and the like.

        Raises:
            InvalidRequest: it is no Jinja template.
        """
        self.source: Final = source
        self._special_tokens: Final = dict(special_tokens)
        try:
            self._template: Final = _SandboxedEnvironment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise InvalidRequest(
                f"chat_template is no valid Jinja template: {error}",
                field="chat_template",
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Render ``messages`` as text, special tokens included.

        Args:
            messages: OpenAI style; see ``normalize_messages``.
            tools: descriptions of functions that the model may call.
            add_generation_prompt: end with the start of the assistant's answer.
            variables: whatever else the template reads.

        Raises:
            InvalidRequest: the messages cannot be rendered; carries what the template
                itself says about them.
        """
        context = {
            "tools": None if tools is None else list(tools),
            "documents": None,
            **self._special_tokens,
            **variables,
            "messages": normalize_messages(messages, self.source),
            "add_generation_prompt": add_generation_prompt,
            "range": _Range(),
        }
        try:
            return "".join(_bounded(self._template.generate(context)))
        except InvalidRequest:
            raise
        # A program over what the caller sent: any failure is the caller's.
        except Exception as error:
            raise InvalidRequest(
                f"the chat template rejects these messages: {error}", field="messages"
            ) from error


def _bounded(pieces: Iterator[str]) -> Iterator[str]:
    length = 0
    for piece in pieces:
        length += len(piece)
        if length > MAX_RENDERED_CHARACTERS:
            raise InvalidRequest(
                "the chat template gives more than "
                f"{MAX_RENDERED_CHARACTERS} characters",
                field="messages",
                value=length,
            )
        yield piece


class _Range:
    """``range`` with a budget for the whole rendering."""

    def __init__(self) -> None:
        self._left = MAX_LOOP_STEPS

    def __call__(self, *limits: int) -> range:
        numbers = range(*limits)
        self._left -= len(numbers)
        if self._left < 0:
            raise SecurityError(f"more than {MAX_LOOP_STEPS} loop steps")
        return numbers


class _GenerationTag(Extension):
    """``{% generation %}``: marks an assistant's text for training; plain here."""

    tags = {"generation"}  # noqa: RUF012  (as jinja2 declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return what stands between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _SandboxedEnvironment(ImmutableSandboxedEnvironment):
    """What transformers gives to templates, plus limits on what may be made at once.

    Source: transformers 5.24, ``utils/chat_template_utils.py``.
    """

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
        )
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        for name in _BOUNDED_FILTERS:
            self.filters[name] = _bounded_filter(self.filters[name])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Multiply, raise or format, unless that makes something huge."""
        both = (left, right)
        sizes = [len(side) for side in both if isinstance(side, str | list | tuple)]
        if operator == "%" and isinstance(left, str) and _WIDE_FORMAT.search(left):
            raise SecurityError("a format is too wide")
        if operator == "*" and sizes:
            numbers = [side for side in both if isinstance(side, int)]
            if sizes[0] * max(numbers, default=0) > MAX_RENDERED_CHARACTERS:
                raise SecurityError("a repetition is too long")
        if operator == "**" and isinstance(right, int) and abs(right) > 64:
            raise SecurityError(f"the power of {right} is too large")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call with numbers no larger than a text may be long."""
        _check_sizes(args, kwargs)
        return super().call(context, function, *args, **kwargs)


def _check_sizes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and value > MAX_RENDERED_CHARACTERS:
            raise SecurityError(f"{value} is too large")


def _bounded_filter(filter_: Any) -> Any:
    @functools.wraps(filter_)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_sizes(args, kwargs)
        return filter_(*args, **kwargs)

    return checked


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Not jinja2's own, which escapes for HTML.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format_: str) -> str:
    return datetime.now().astimezone().strftime(format_)
