"""A request on its way into the engine: checked, in token ids, its form compiled."""

from dataclasses import dataclass

from hybrid.grammar.grammar_state import GrammarState
from hybrid.scheduler import GenerateRequest


@dataclass(frozen=True, slots=True)
class ProcessedRequest:
    """What ``InputProcessor`` makes, and ``HybridEngine.add_processed`` takes, once."""

    request: GenerateRequest
    text: str | None
    """The prompt's, if it came as text."""
    form: GrammarState | None
    """The beginning of an answer in the form that was asked for. It comes along, so
    that the engine never has to compile."""
