"""What one sequence has drawn so far, in the forms that the sampler asks for."""

import numpy as np
from numpy.typing import NDArray

from hybrid.grammar.grammar_state import GrammarState


class TokenCounts:
    """Distinct ids and how often each came: O(1) a token, arrays without a copy."""

    __slots__ = ("_counts", "_ids", "_slots")

    def __init__(self, ids: NDArray[np.intp] | None = None) -> None:
        """Start with each of ``ids`` (distinct) counted once, or empty."""
        start = np.empty(0, np.intp) if ids is None else ids
        self._slots = {int(token_id): slot for slot, token_id in enumerate(start)}
        self._ids = start.copy()
        self._counts = np.ones(len(start), np.float32)

    @property
    def ids(self) -> NDArray[np.intp]:
        """The distinct ids ``[k]``, in order of first appearance."""
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """How often each of ``ids`` came, float32 ``[k]``."""
        return self._counts[: len(self._slots)]

    def append(self, token_id: int) -> None:
        """Count one more occurrence."""
        slot = self._slots.get(token_id)
        if slot is not None:
            self._counts[slot] += 1.0
            return
        slot = len(self._slots)
        if slot == len(self._ids):
            room = max(16, 2 * slot)
            self._ids = np.concatenate([self._ids, np.empty(room, np.intp)])
            self._counts = np.concatenate([self._counts, np.empty(room, np.float32)])
        self._slots[token_id] = slot
        self._ids[slot] = token_id
        self._counts[slot] = 1.0

    def copy(self) -> "TokenCounts":
        """An equal one that shares nothing."""
        twin = TokenCounts()
        twin._slots = dict(self._slots)
        twin._ids = self._ids.copy()
        twin._counts = self._counts.copy()
        return twin


class TokenHistory:
    """The drawn tokens of one sequence; the counts only where a penalty needs them."""

    __slots__ = ("grammar", "output_counts", "output_token_ids", "seen")

    def __init__(
        self,
        output_token_ids: list[int],
        output_counts: TokenCounts | None,
        seen: TokenCounts | None,
        grammar: GrammarState | None = None,
    ) -> None:
        self.output_token_ids = output_token_ids
        self.output_counts = output_counts
        """Of the output; for presence and frequency."""
        self.seen = seen
        """Of prompt and output (only its ids mean anything); for repetition."""
        self.grammar = grammar
        """What may come next, where the answer has a form."""

    def append(self, token_id: int) -> None:
        """Commit one drawn token."""
        self.output_token_ids.append(token_id)
        if self.output_counts is not None:
            self.output_counts.append(token_id)
        if self.seen is not None:
            self.seen.append(token_id)
        if self.grammar is not None:
            self.grammar.advance(token_id)

    def fork(self) -> "TokenHistory":
        """The history of a sample that parts here."""
        counts, seen, grammar = self.output_counts, self.seen, self.grammar
        return TokenHistory(
            list(self.output_token_ids),
            None if counts is None else counts.copy(),
            None if seen is None else seen.copy(),
            None if grammar is None else grammar.copy(),
        )
