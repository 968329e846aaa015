"""Computes the log-probabilities of one position from its raw logits."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .candidates import top_ids
from .sampled_step import TokenLogprobs


def token_logprobs(
    row: NDArray[np.float32], token_ids: Sequence[int], num_top: int
) -> tuple[TokenLogprobs, ...]:
    """Log-probabilities of each of ``token_ids`` in one distribution.

    Args:
        row: raw logits, float32 ``[vocab]``, its maximum finite.
        token_ids: one from ``vocab`` up has no logit (a prompt may hold rows that pad
            the model's head): its probability is 0 and its rank the last.
        num_top: how many of the likeliest ids to list; 0 lists none.
    """
    # float64 throughout: the sum over a large vocabulary must come out as 1.
    highest = float(row.max())
    shifted = row.astype(np.float64) - highest
    log_sum = float(np.log(np.exp(shifted).sum()))
    likeliest = top_ids(row, num_top) if num_top else np.empty(0, np.intp)
    tops = tuple(likeliest.tolist())
    top_logprobs = tuple((shifted[likeliest] - log_sum).tolist())
    return tuple(
        TokenLogprobs(
            token_id,
            float(shifted[token_id]) - log_sum if token_id < len(row) else -math.inf,
            _rank(row, token_id),
            tops,
            top_logprobs,
        )
        for token_id in token_ids
    )


def _rank(row: NDArray[np.float32], token_id: int) -> int:
    if token_id >= len(row):
        return len(row) + 1
    value = row[token_id]
    higher = np.count_nonzero(row > value)
    return 1 + int(higher) + int(np.count_nonzero(row[:token_id] == value))
