"""Repetition, frequency and presence penalties, on the ids that came and no others."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybrid.scheduler.sampling_params import SamplingParams

from .token_history import TokenCounts, TokenHistory

_HIGHEST: Final = float(np.finfo(np.float32).max)


def has_penalties(params: SamplingParams) -> bool:
    """Whether any of the three changes a logit."""
    return params.repetition_penalty != 1.0 or _has_output_penalties(params)


def start_history(
    params: SamplingParams, prompt_token_ids: tuple[int, ...], num_ids: int
) -> TokenHistory:
    """A history that counts what the penalties of ``params`` will ask for.

    Args:
        params: the request's.
        prompt_token_ids: they weigh in the repetition penalty only.
        num_ids: columns of the rows; prompt ids beyond have no logit to change.
    """
    seen = None
    if params.repetition_penalty != 1.0:
        prompt = np.unique(np.asarray(prompt_token_ids, dtype=np.intp))
        seen = TokenCounts(prompt[prompt < num_ids])
    counts = TokenCounts() if _has_output_penalties(params) else None
    return TokenHistory([], counts, seen)


def apply_penalties(
    row: NDArray[np.float32], params: SamplingParams, history: TokenHistory
) -> None:
    """Change ``row`` (float32 ``[vocab]``) in place; a masked id stays masked."""
    if history.seen is not None:
        _penalise_repetition(row, history.seen.ids, params.repetition_penalty)
    if history.output_counts is not None:
        counts = history.output_counts
        penalties = np.float32(params.frequency_penalty) * counts.counts
        row[counts.ids] -= penalties + np.float32(params.presence_penalty)


def _penalise_repetition(
    row: NDArray[np.float32], ids: NDArray[np.intp], penalty: float
) -> None:
    values = row[ids].astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        changed = np.where(values > 0, values / penalty, values * penalty)
    # No penalty, however extreme, may make an infinity of a finite logit.
    np.clip(changed, -_HIGHEST, _HIGHEST, out=changed)
    row[ids] = np.where(np.isinf(values), values, changed)


def _has_output_penalties(params: SamplingParams) -> bool:
    return params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
