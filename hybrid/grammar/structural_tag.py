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
        self._special: Final = re.compile("|".join(map(re.escape, longest_first)))
        self._writers: Final[Mapping[str, Callable[[dict[str, Any]], str]]] = {
            "any_text": self._any_text,
            "const_string": lambda part: self._literal(_get(part, "value", str)),
            "json_schema": _json_schema,
            "or": lambda part: self._joined(_get(part, "elements", list), " | "),
            "regex": self._regex,
            "sequence": lambda part: self._joined(_get(part, "elements", list), " "),
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

    def _joined(self, parts: list[object], by: str) -> str:
        if not parts:
            raise ValueError("a sequence or alternative has no elements")
        return "(" + by.join(map(self.write, parts)) + ")"

    def _literal(self, text: str) -> str:
        """The tokens of special texts, the spelling of others."""
        pieces = []
        place = 0
        for match in self._special.finditer(text) if self._special_tokens else ():
            pieces.append(text[place : match.start()])
            pieces.append(f"<[{self._special_tokens[match[0]]}]>")
            place = match.end()
        pieces.append(text[place:])
        written = [
            piece if index % 2 else json.dumps(piece, ensure_ascii=False)
            for index, piece in enumerate(pieces)
            if piece
        ]
        return " ".join(written) or '""'

    def _regex(self, part: dict[str, Any]) -> str:
        return self._terminal(_as_regex(_get(part, "pattern", str)))

    def _any_text(self, part: dict[str, Any]) -> str:
        return self._terminal(_text_without(_texts(part, "excludes")))

    def _tag(self, part: dict[str, Any]) -> str:
        return f"({self._literal(_get(part, 'begin', str))} {self._tail(part)})"

    def _tail(self, part: dict[str, Any]) -> str:
        """What follows the beginning of a tag."""
        ends = _texts(part, "end")
        end = "(" + " | ".join(map(self._literal, ends)) + ")" if ends else ""
        content = _get(part, "content", dict)
        if content.get("type") != "any_text":
            return f"{self.write(content)} {end}"
        # Up to the first end: the text holds none of those that are spelled.
        spelled = [text for text in ends if not self._has_special(text)]
        excludes = [*_texts(content, "excludes"), *filter(None, spelled)]
        return f"{self._terminal(_text_without(excludes))} {end}"

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
        excludes = [
            *_texts(part, "excludes"),
            *(text for text in triggers if not self._has_special(text)),
        ]
        text = self._terminal(_text_without(excludes))
        triggered = []
        for trigger in triggers:
            tails = [
                f"{self._literal(begin[len(trigger) :])} {self._tail(tag)}"
                for tag in tags
                if (begin := _get(tag, "begin", str)).startswith(trigger)
            ]
            if not tails:
                raise ValueError(f"no tag begins with the trigger {shown(trigger)}")
            triggered.append(f"{self._literal(trigger)} ({' | '.join(tails)})")
        _check_triggered(tags, triggers)
        tag = f"({' | '.join(triggered)})"
        is_single = bool(part.get("stop_after_first"))
        if part.get("at_least_one"):
            return tag if is_single else f"({tag} ({text} {tag})* {text})"
        return f"({text} {tag}? )" if is_single else f"(({text} {tag})* {text})"

    def _has_special(self, text: str) -> bool:
        return bool(self._special_tokens) and self._special.search(text) is not None

    def _terminal(self, body: str) -> str:
        name = f"T{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name


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
