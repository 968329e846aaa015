"""The built-in logits processors, one object per request and purpose.

Two kinds. ``AllowedTokens`` is a promise: no other id is ever drawn. A *ban* (bad
words, the minimum length) gives way where it would leave nothing to draw: a banned id
is then better than no answer, and better than an id that was not allowed.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from hybrid.scheduler.generate_request import GenerateRequest
from hybrid.scheduler.sampling_params import SamplingParams

_BANNED = np.float32(-np.inf)


class TokenMask(ABC):
    """One step of the fixed order, bound to a request."""

    def is_active(self, num_output_tokens: int) -> bool:  # noqa: ARG002 - hook
        """Whether it could change a row at this output position."""
        return True

    @abstractmethod
    def apply(self, output_token_ids: Sequence[int], row: NDArray[np.float32]) -> None:
        """Change ``row`` (float32 ``[vocab]``) in place."""


class AllowedTokens(TokenMask):
    """Forbids every id but those listed."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._ids = np.unique(np.asarray(token_ids, dtype=np.intp))

    def apply(self, output_token_ids: Sequence[int], row: NDArray[np.float32]) -> None:  # noqa: ARG002 - depends on no history
        """Keep the listed ids' logits, forbid the rest."""
        kept = row[self._ids]
        row.fill(_BANNED)
        row[self._ids] = kept


class BadWords(TokenMask):
    """Forbids the id that would complete a listed sequence of ids.

    The sequence may have begun in the prompt.
    """

    def __init__(
        self, sequences: Sequence[Sequence[int]], prompt_token_ids: Sequence[int]
    ) -> None:
        self._sequences = [(tuple(ids[:-1]), ids[-1]) for ids in sequences]
        longest = max((len(head) for head, _ in self._sequences), default=0)
        self._tail_of_prompt = list(prompt_token_ids[-longest:]) if longest else []
        self._longest = longest

    def apply(self, output_token_ids: Sequence[int], row: NDArray[np.float32]) -> None:
        """Forbid the last id of every sequence whose others have just come."""
        tail: list[int] = []
        if self._longest:
            tail = list(output_token_ids[-self._longest :])
            if len(tail) < self._longest:
                tail = self._tail_of_prompt + tail
        banned = {
            last
            for head, last in self._sequences
            if not head or tuple(tail[-len(head) :]) == head
        }
        if banned:
            _ban(row, np.array(sorted(banned), dtype=np.intp))


class MinTokens(TokenMask):
    """Forbids every id that would end the answer, for the first outputs."""

    def __init__(self, min_tokens: int, ending_ids: Sequence[int]) -> None:
        self._min_tokens = min_tokens
        self._ids = np.array(sorted(ending_ids), dtype=np.intp)

    def is_active(self, num_output_tokens: int) -> bool:
        """Whether the answer is still too short to end."""
        return num_output_tokens < self._min_tokens

    def apply(self, output_token_ids: Sequence[int], row: NDArray[np.float32]) -> None:
        """Forbid the ending ids while fewer than ``min_tokens`` outputs are out."""
        if self.is_active(len(output_token_ids)):
            _ban(row, self._ids)


class LogitBias(TokenMask):
    """Adds a number to the logits of listed ids."""

    def __init__(self, bias: Sequence[tuple[int, float]]) -> None:
        self._ids = np.array([token_id for token_id, _ in bias], dtype=np.intp)
        self._values = np.array([value for _, value in bias], dtype=np.float32)

    def apply(self, output_token_ids: Sequence[int], row: NDArray[np.float32]) -> None:  # noqa: ARG002 - depends on no history
        """Add the bias; a forbidden id stays forbidden."""
        with np.errstate(over="ignore"):
            row[self._ids] += self._values


def build_masks(
    request: GenerateRequest, bad_words: Sequence[Sequence[int]], num_ids: int
) -> tuple[TokenMask, ...]:
    """The masks that a request's parameters ask for, in the order of application.

    Args:
        request: whose parameters they are.
        bad_words: its ``bad_words`` as id sequences.
        num_ids: columns of the rows.
    """
    params = request.sampling_params
    masks: list[TokenMask] = []
    # Ids beyond the columns: never drawn whatever is asked, so none is a fault here,
    # and a sequence with one can never be completed.
    if params.allowed_token_ids is not None:
        masks.append(AllowedTokens(_with_columns(params.allowed_token_ids, num_ids)))
    drawable = [ids for ids in bad_words if ids and max(ids) < num_ids]
    if drawable:
        masks.append(BadWords(drawable, request.prompt_token_ids))
    ending = _ending_ids(request, params, num_ids)
    if params.min_tokens and ending:
        masks.append(MinTokens(params.min_tokens, ending))
    biased = _with_columns(sorted(params.logit_bias), num_ids)
    if biased:
        masks.append(LogitBias([(i, params.logit_bias[i]) for i in biased]))
    return tuple(masks)


def _ending_ids(
    request: GenerateRequest, params: SamplingParams, num_ids: int
) -> list[int]:
    ids = request.eos_token_ids.union(params.stop_token_ids)
    return _with_columns(ids, num_ids)


def _with_columns(ids: Iterable[int], num_ids: int) -> list[int]:
    return [token_id for token_id in ids if 0 <= token_id < num_ids]


def _ban(row: NDArray[np.float32], ids: NDArray[np.intp]) -> None:
    kept = row[ids]
    row[ids] = _BANNED
    if row.max() == _BANNED:
        row[ids] = kept
