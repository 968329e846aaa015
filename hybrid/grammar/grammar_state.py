"""Where one sample stands in the form of its answer."""

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llguidance import LLMatcher

_FORBIDDEN: Final = np.float32(-np.inf)


class GrammarState:
    """One sample's own; ``advance`` moves it on, ``copy`` lets another part here."""

    def __init__(self, matcher: "LLMatcher", textual_eos: NDArray[np.intp]) -> None:
        """Start where ``matcher`` stands.

        Args:
            matcher: this state's own from now on.
            textual_eos: the model's ends that are a text as well, ``[k]``: such a
                token ends the answer, so that it may come at the end alone.
        """
        self._matcher: Final = matcher
        self._textual_eos: Final = textual_eos

    @property
    def fault(self) -> str | None:
        """Why it cannot go on, or ``None``: a limit was met, or a token did not fit."""
        if not self._matcher.is_error():
            return None
        # The lines after the first show the answer.
        return self._matcher.get_error().partition("\n")[0]

    def apply(self, row: NDArray[np.float32]) -> None:
        """Forbid in ``row`` (float32 ``[vocab]``) whatever may not come next.

        The model's ends stay where the form is complete; they alone, where it can only
        end. Nothing is right after a ``fault``.
        """
        # One byte an id of the tokenizer, which may know more ids than there are
        # columns: 0 is forbidden.
        verdicts = np.frombuffer(self._matcher.compute_logit_bias(), np.uint8)
        is_forbidden = verdicts == 0
        if len(self._textual_eos) and not self._matcher.is_accepting():
            is_forbidden[self._textual_eos] = True
        row[is_forbidden[: len(row)]] = _FORBIDDEN

    def advance(self, token_id: int) -> None:
        """Take in the token that was drawn; one that does not fit is a ``fault``."""
        self._matcher.consume_token(token_id)

    def copy(self) -> "GrammarState":
        """An equal one that shares nothing that changes."""
        return GrammarState(self._matcher.deep_copy(), self._textual_eos)
