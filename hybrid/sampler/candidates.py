"""The ids a draw chooses among, with their weights, after min_p, top_k and top_p."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybrid.scheduler.sampling_params import SamplingParams

_FIRST_NUCLEUS: Final = 256
"""Ids that top_p looks at first: a trained model's 0.9 is mostly among fewer."""
_NUCLEUS_GROWTH: Final = 16
_FULL_SORT: Final = 4
"""From a fourth of the vocabulary on, sorting all of it costs no more than a part."""
_BLOCK: Final = 512
"""Weights summed at once when a draw looks through a whole vocabulary."""
_MAX_TEMPERATURE: Final = 1e30
"""Above this all finite logits are equally likely in float32; a larger divisor would
become infinite there and make NaN of masked ids."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """A distribution, not normalised, in an order that depends on the logits alone."""

    weights: NDArray[np.float32]
    """float32 ``[k]``, none negative, at least one of them 1."""
    ids: NDArray[np.intp] | None
    """``[k]``, the ids of ``weights``, likeliest first; ``None``: their index is it."""

    def pick(self, uniform: float) -> int:
        """The id at ``uniform`` (in [0, 1)) of the cumulative distribution."""
        # Two levels: a float64 running sum over a whole vocabulary is the slow part.
        starts = np.arange(0, len(self.weights), _BLOCK)
        sums = np.cumsum(np.add.reduceat(self.weights, starts, dtype=np.float64))
        total = float(sums[-1])
        # Rounding must not put the target on the total: no block would lie beyond.
        target = min(uniform * total, math.nextafter(total, 0.0))
        block = int(np.searchsorted(sums, target, side="right"))
        before = float(sums[block - 1]) if block else 0.0
        weights = self.weights[starts[block] : starts[block] + _BLOCK]
        running = np.cumsum(weights, dtype=np.float64)
        index = int(np.searchsorted(running, target - before, side="right"))
        if index == len(running):
            # The two sums of a block may differ in the last bit.
            index = int(np.flatnonzero(weights)[-1])
        index += int(starts[block])
        return index if self.ids is None else int(self.ids[index])


def candidates(row: NDArray[np.float32], params: SamplingParams) -> Candidates:
    """What ``params`` leaves of a row of logits.

    Args:
        row: float32 ``[vocab]`` after masks, bias and penalties; its maximum is finite.
        params: a temperature that is not greedy, min_p, top_k, top_p.
    """
    if 0 < params.top_k < len(row):
        ids = top_ids(row, params.top_k)
        weights = _weights(row[ids], params)
        if params.top_p < 1.0:
            total = float(weights.sum(dtype=float))
            kept = _nucleus_length(weights, total, params.top_p)
            ids, weights = ids[:kept], weights[:kept]
        return Candidates(weights, ids)
    weights = _weights(row, params)
    if params.top_p == 1.0:
        return Candidates(weights, None)
    return _nucleus(row, weights, params.top_p)


def likeliest_ids(rows: NDArray[np.float32]) -> list[int] | None:
    """The id of the highest value in each row, the lowest of equal ones.

    Args:
        rows: float32 ``[n, vocab]``, contiguous and not read-only: numpy copies others.

    Returns:
        ``None`` if a row is no distribution: it has NaN, or its maximum is not finite.
    """
    best: list[int] = rows.argmax(axis=1).tolist()
    # argmax stops at the first NaN, so one look a row tells. One by one: numpy's ways
    # to do it at once cost more where a model has just emptied the caches.
    highest = map(rows.item, range(len(best)), best)
    return best if all(map(math.isfinite, highest)) else None


def top_ids(row: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """The ids of the ``k`` highest values, highest first, ties to the lower id.

    Args:
        row: float32 ``[vocab]`` without NaN.
        k: at least 1; at most ``vocab`` are returned.
    """
    size = len(row)
    if k == 1:
        return np.array([row.argmax()])
    if k * _FULL_SORT >= size:
        return _all_ids(row)[:k]
    threshold = np.partition(row, size - k)[size - k]
    above = np.flatnonzero(row > threshold)
    equal = np.flatnonzero(row == threshold)[: k - len(above)]
    order = np.argsort(-row[above], kind="stable")
    return np.concatenate([above[order], equal])


def _all_ids(row: NDArray[np.float32]) -> NDArray[np.intp]:
    # Sorting (value, id) packed into one word is exact on ties and, unlike a stable
    # argsort, vectorised: a tenth of its time. Adding zero makes -0.0 equal to 0.0. As
    # integers, floats fall with their bits where negative, and rise where positive.
    bits = (row + np.float32(0.0)).view(np.int32)
    falling = (bits ^ (~(bits >> 31) & 0x7FFFFFFF)).view(np.uint32)
    keys = falling.astype(np.uint64) << np.uint64(32)
    keys |= np.arange(len(row), dtype=np.uint64)
    keys.sort()
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.intp)


def _weights(
    logits: NDArray[np.float32], params: SamplingParams
) -> NDArray[np.float32]:
    """exp((logit - highest) / temperature): at most 1, 0 for ids masked or by min_p."""
    with np.errstate(over="ignore", under="ignore"):
        weights: NDArray[np.float32] = logits - logits.max()
        if params.temperature != 1.0:
            weights /= np.float32(min(params.temperature, _MAX_TEMPERATURE))
        np.exp(weights, out=weights)
    if params.min_p > 0.0:
        weights[weights < params.min_p] = 0.0
    return weights


def _nucleus(
    row: NDArray[np.float32], weights: NDArray[np.float32], top_p: float
) -> Candidates:
    total = float(weights.sum(dtype=float))
    size = len(row)
    k = min(_FIRST_NUCLEUS, size)
    while True:
        ids = top_ids(row, k)
        likeliest = weights[ids]
        reached = float(likeliest.sum(dtype=float)) >= top_p * total
        if reached or k == size:
            kept = _nucleus_length(likeliest, total, top_p)
            return Candidates(likeliest[:kept], ids[:kept])
        k *= _NUCLEUS_GROWTH
        if k * _FULL_SORT >= size:
            k = size


def _nucleus_length(weights: NDArray[np.float32], total: float, top_p: float) -> int:
    """Length of the shortest head of falling ``weights`` that reaches its share."""
    running = np.cumsum(weights, dtype=np.float64)
    reach = int(np.searchsorted(running, top_p * total, side="left"))
    return min(reach + 1, len(weights))
