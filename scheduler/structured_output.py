"""What an answer must look like: a value, checked for shape alone.

Whether a schema or a grammar means anything, and whether it is too much, is found out
by who compiles it.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .errors import InvalidRequest
from .field_checks import as_texts, fault
from .shown_value import shown

MAX_CHOICES: Final = 4096
MAX_CHARACTERS: Final = 2**20
"""Of one text, before anything looks into it; who compiles it may take less."""
_FIELD: Final = "structured_output"


class GrammarKind(StrEnum):
    """How the form of an answer is described."""

    JSON_SCHEMA = "json_schema"
    """A JSON Schema; what of it cannot be promised is refused."""
    JSON_OBJECT = "json_object"
    """Any JSON object; takes no text."""
    REGEX = "regex"
    """A regular expression, as Rust's ``regex`` has it, for the whole answer."""
    GRAMMAR = "grammar"
    """A context-free grammar: GBNF with a rule ``root``, or Lark with one ``start``."""
    CHOICE = "choice"
    """One of some texts."""
    STRUCTURAL_TAG = "structural_tag"
    """Free text around tags with content of a given form, as JSON."""


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """The form of an answer; see ``GrammarKind``.

    Raises:
        InvalidRequest: a part is missing or out of place.
    """

    kind: GrammarKind
    text: str = ""
    """The schema, pattern, grammar or structural tag; empty for the other kinds."""
    choices: tuple[str, ...] = ()
    """The texts of ``CHOICE``; empty for every other kind."""

    def __post_init__(self) -> None:
        """Check every field and bring it into one shape."""
        object.__setattr__(self, "kind", _as_kind(self.kind))
        object.__setattr__(self, "text", _as_text(self.text))
        choices = as_texts(
            f"{_FIELD}.choices", self.choices, MAX_CHOICES, MAX_CHARACTERS
        )
        object.__setattr__(self, "choices", choices)
        self._check_parts()

    @property
    def num_characters(self) -> int:
        """Length of what must be compiled."""
        return len(self.text) + sum(map(len, self.choices))

    def _check_parts(self) -> None:
        has_choices = self.kind is GrammarKind.CHOICE
        has_text = self.kind not in (GrammarKind.CHOICE, GrammarKind.JSON_OBJECT)
        for name, value, is_due in (
            ("text", self.text, has_text),
            ("choices", self.choices, has_choices),
        ):
            if bool(value) is not is_due:
                is_wrong = "is missing" if is_due else "is out of place"
                raise InvalidRequest(
                    f"{_FIELD}.{name} is {shown(value)}: it {is_wrong} for "
                    f"{self.kind.value}",
                    field=_FIELD,
                    value=value,
                )


def _as_kind(value: object) -> GrammarKind:
    try:
        return GrammarKind(value)  # type: ignore[arg-type]  # anything may be passed
    except ValueError:
        names = ", ".join(kind.value for kind in GrammarKind)
        raise fault(f"{_FIELD}.kind", value, f"one of {names}") from None


def _as_text(value: object) -> str:
    if not isinstance(value, str):
        raise fault(f"{_FIELD}.text", value, "a text")
    if not value:
        return value
    return as_texts(f"{_FIELD}.text", value, 1, MAX_CHARACTERS)[0]
