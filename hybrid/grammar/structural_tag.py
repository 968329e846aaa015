"""Structural tags: free text around tags whose content has a form.

Takes xgrammar's ``{"format": {...}}``, and its older ``{"structures": [...],
"triggers": [...]}``, as vLLM's ``structural_tag`` does.

Source: xgrammar 0.2, ``docs/tutorials/structural_tag.md``.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from hybrid.scheduler.shown_value import shown

from .json_whitespace import WHITESPACE
from .lark_literal import lark_literal

_TEXT: Final = r"/(.|\n)*/"


def structural_tag_to_lark(text: str, special_tokens: Mapping[str, int]) -> str:
    """Write a structural tag as a grammar of llguidance's.

    Args:
        text: the tag, as JSON.
        special_tokens: the tokenizer's, by their text: where a literal spells one, the
            token itself is meant.

    Raises:
        ValueError: it is no structural tag, or of a format that is not known here.
        RecursionError: it is nested too deeply.
    """
    tag = json.loads(text)
    writer = _LarkWriter(special_tokens)
    start = writer.write(_format_of(tag))
    return "\n".join(["%llguidance {}", f"start: {start}", *writer.rules, ""])


def _format_of(tag: object) -> dict[str, Any]:
    """The format of either notation."""
    if isinstance(tag, dict) and "structures" in tag:
        return {
            "type": "triggered_tags",
            "triggers": _get(tag, "triggers", list),
            "tags": list(map(_tag_of, _get(tag, "structures", list))),
        }
    found: dict[str, Any] = _get(tag, "format", dict)
    return found


def _tag_of(structure: object) -> dict[str, Any]:
    schema = _get(structure, "schema", dict)
    return {
        "begin": _get(structure, "begin", str),
        "content": {"type": "json_schema", "json_schema": schema},
        "end": _get(structure, "end", str),
    }


class _LarkWriter:
    """Writes formats as expressions; what needs a name of its own becomes a rule."""

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self.rules: Final[list[str]] = []
        self._special_tokens: Final = special_tokens
        longest_first = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._special: Final = re.compile(
            "(" + "|".join(map(re.escape, longest_first)) + ")"
        )
        self._writers: Final[Mapping[str, Callable[[dict[str, Any]], str]]] = {
            "any_text": lambda part: self._terminal(_any_text(part)),
            "const_string": lambda part: self._literal(_get(part, "value", str)),
            "json_schema": _json_schema,
            "or": self._or,
            "regex": lambda part: self._terminal(_regex(part)),
            "sequence": self._sequence,
            "tag": self._tag,
            "tags_with_separator": self._tags_with_separator,
            "triggered_tags": self._triggered_tags,
        }

    def write(self, part: object) -> str:
        """The expression of one format, in brackets where it needs them."""
        kind = _get(part, "type", str)
        write = self._writers.get(kind)
        if write is None:
            raise ValueError(
                f"format {shown(kind)} is not known, must be one of "
                f"{', '.join(self._writers)}"
            )
        assert isinstance(part, dict)
        return write(part)

    def _or(self, part: dict[str, Any]) -> str:
        return self._joined(_get(part, "elements", list), " | ")

    def _sequence(self, part: dict[str, Any]) -> str:
        elements = _get(part, "elements", list)
        for element in elements[:-1]:
            _check_ends(element)
        return self._joined(elements, " ")

    def _joined(self, parts: list[object], by: str) -> str:
        if not parts:
            raise ValueError("a list of formats is empty")
        return "(" + by.join(map(self.write, parts)) + ")"

    def _literal(self, text: str) -> str:
        """The tokens of special texts, the spelling of others."""
        pieces = self._pieces(text)
        written = [
            f"<[{self._special_tokens[piece]}]>" if index % 2 else lark_literal(piece)
            for index, piece in enumerate(pieces)
            if piece
        ]
        return " ".join(written) or '""'

    def _pieces(self, text: str) -> list[str]:
        """``text`` cut at special tokens, which are every second piece."""
        return self._special.split(text) if self._special_tokens else [text]

    def _tag(self, part: dict[str, Any]) -> str:
        return f"({self._literal(_get(part, 'begin', str))} {self._tail(part)})"

    def _tail(self, part: dict[str, Any]) -> str:
        """What follows the beginning of a tag."""
        content, ends = _get(part, "content", dict), _texts(part, "end") or [""]
        match content.get("type"):
            case "any_text":
                # Up to the first end.
                excludes = [*_texts(content, "excludes"), *self._spelled(ends)]
                return self._up_to(_text_without(excludes), ends)
            case "regex":
                return self._up_to(_regex(content), ends)
        if any(ends):
            _check_ends(content)
        return f"{self.write(content)} ({' | '.join(map(self._literal, ends))})"

    def _up_to(self, body: str, ends: list[str]) -> str:
        """A text and one of ``ends``.

        What is spelled is one terminal with the text before it: the lexer takes as much
        as it can, and would take the end for text.
        """
        written = []
        for end in ends:
            first, *others = self._pieces(end)
            rest = self._literal(end[len(first) :]) if others else ""
            spelled = f" {lark_literal(first)}" if first else ""
            written.append(f"{self._terminal(f'({body}){spelled}')} {rest}")
        return "(" + " | ".join(written) + ")"

    def _tags_with_separator(self, part: dict[str, Any]) -> str:
        tags = self._joined(
            [{"type": "tag"} | tag for tag in _get(part, "tags", list)], " | "
        )
        separator = self._literal(_get(part, "separator", str))
        more = "" if part.get("stop_after_first") else f" ({separator} {tags})*"
        return f"({tags}{more})" + ("" if part.get("at_least_one") else "?")

    def _triggered_tags(self, part: dict[str, Any]) -> str:
        """Free text up to a trigger, then the rest of a tag that begins with it.

        With ``at_least_one`` the answer begins with a tag at once.
        """
        triggers, tags = _texts(part, "triggers"), _get(part, "tags", list)
        _check_triggered(tags, triggers)
        text = _text_without([*_texts(part, "excludes"), *self._spelled(triggers)])
        first, later = [], []
        for trigger in triggers:
            tail = self._tails(tags, trigger)
            first.append(f"{self._literal(trigger)} {tail}")
            later.append(f"{self._up_to(text, [trigger])} {tail}")
        free = self._terminal(text)
        one, other = f"({' | '.join(first)})", f"({' | '.join(later)})"
        is_single = bool(part.get("stop_after_first"))
        if part.get("at_least_one"):
            return one if is_single else f"({one} {other}* {free})"
        return f"({other} | {free})" if is_single else f"({other}* {free})"

    def _tails(self, tags: list[object], trigger: str) -> str:
        tails = [
            f"{self._literal(begin[len(trigger) :])} {self._tail(tag)}"
            for tag in tags
            if isinstance(tag, dict)
            and (begin := _get(tag, "begin", str)).startswith(trigger)
        ]
        if not tails:
            raise ValueError(f"no tag begins with the trigger {shown(trigger)}")
        return f"({' | '.join(tails)})"

    def _spelled(self, texts: list[str]) -> list[str]:
        """Those that a text can hold: special tokens are in none."""
        return [text for text in texts if text and len(self._pieces(text)) == 1]

    def _terminal(self, body: str) -> str:
        name = f"T{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name


def _check_ends(part: object) -> None:
    """Refuse a format after which no other could be told from its text."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("any_text", "triggered_tags"):
        raise ValueError(f"{kind} goes on to the end: nothing can come after it")


def _any_text(part: dict[str, Any]) -> str:
    return _text_without(_texts(part, "excludes"))


def _regex(part: dict[str, Any]) -> str:
    return _as_regex(_get(part, "pattern", str))


def _json_schema(part: dict[str, Any]) -> str:
    style = part.get("style", "json")
    if style != "json":
        raise ValueError(f"style is {shown(style)}, must be 'json'")
    schema = part.get("json_schema")
    if isinstance(schema, dict):
        schema = {"x-guidance": {"whitespace_pattern": WHITESPACE}} | schema
    elif not isinstance(schema, bool):
        raise ValueError(  # noqa: TRY004 - what a caller passed as JSON
            f"json_schema is {shown(schema)}, must be a schema"
        )
    return "%json " + json.dumps(schema, allow_nan=False)


def _as_regex(pattern: str) -> str:
    # A Lark regex ends at a slash or a line's end.
    return "/" + re.sub(r"\\.|/", _escaped_slash, pattern).replace("\n", r"\n") + "/"


def _escaped_slash(match: re.Match[str]) -> str:
    return r"\/" if match[0] == "/" else match[0]


def _text_without(excludes: list[str]) -> str:
    """Any text in which none of ``excludes`` is."""
    if not excludes:
        return _TEXT
    spelled = "|".join(_as_regex(re.escape(text))[1:-1] for text in excludes)
    return rf"{_TEXT} & ~/(.|\n)*({spelled})(.|\n)*/"


def _check_triggered(tags: list[object], triggers: list[str]) -> None:
    for tag in tags:
        begin = _get(tag, "begin", str)
        if not begin.startswith(tuple(triggers)):
            raise ValueError(f"tag {shown(begin)} begins with no trigger")


def _texts(part: dict[str, Any], name: str) -> list[str]:
    """A text or a list of texts; none without the entry."""
    value = part.get(name, [])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{name} is {shown(value)}, must be texts")
    return texts


def _get(part: object, name: str, kind: type[Any]) -> Any:
    """An entry of an object, of the given kind."""
    if not isinstance(part, dict):
        raise ValueError(  # noqa: TRY004 - as above
            f"{shown(part)} is no object with an entry {name!r}"
        )
    value = part.get(name)
    if not isinstance(value, kind):
        raise ValueError(  # noqa: TRY004 - as above
            f"{name} is {shown(value)}, must be of type {kind.__name__}"
        )
    return value
