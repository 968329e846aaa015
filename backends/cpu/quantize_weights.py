"""From float32 to the integers of the kernels: 8 or 4 bits in groups of 32."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from .weight_packing import (
    GROUP,
    INT4_MIDDLE,
    EightBitGroups,
    FourBitGroups,
    from_bfloat16,
    round_up,
    to_bfloat16,
)

MAX_INT4_WEIGHT: Final = 32768.0
"""Steps are float16; a fitted one may be a little more than the numbers ask for."""
_MAX_INT8: Final = 127
MAX_INT8_WEIGHT: Final = 65504.0 * _MAX_INT8
"""Scales are float16, too."""
_MOST_INT8: Final = 127.25
"""Of a number over its scale, such that it still rounds to 127."""
_MAX_INT4: Final = 15
_LEAST_COST: Final = 0.01
"""Of a column, relative to the mean of its group: what carried nothing while importance
was measured may carry something later."""
_LEAST_SPREAD: Final = 1e-5
"""Of quanta around their mean, below what one that differs makes."""
_SHRINKAGES: Final = (1.0, 0.94, 0.88, 0.8, 0.7)
"""Of a group's range, tried in turn: cutting off the ends makes the steps finer."""

_TINY: Final = np.finfo(np.float32).tiny
"""The inverse of anything smaller may be infinite."""

_Floats = NDArray[np.float32]


def quantize_int8(matrix: _Floats) -> EightBitGroups:
    """Quantise each group of 32 symmetrically, none of its numbers cut off.

    Args:
        matrix: ``[N, K]``, up to ``MAX_INT8_WEIGHT``; padded here with zeros.
    """
    rows = len(matrix)
    groups = _by_group(matrix)
    largest = np.maximum(groups.max(axis=0), -groups.min(axis=0))
    scales = (largest / np.float32(_MAX_INT8)).astype(np.float16)
    # Rounded down, the smallest, which have few bits, would be too small for 127 steps.
    too_small = scales.astype(np.float32) * np.float32(_MOST_INT8) < largest
    scales[too_small] = np.nextafter(scales[too_small], np.float16(np.inf))
    quanta = np.rint(_divided(groups, scales.astype(np.float32))).astype(np.int8)
    return EightBitGroups(
        np.ascontiguousarray(quanta.T).reshape(rows, -1), scales.reshape(rows, -1)
    )


def quantize_int4(matrix: _Floats, importance: _Floats | None = None) -> FourBitGroups:
    """Quantise each group of 32: of a few ranges the one of least squared error.

    Args:
        matrix: ``[N, K]``, up to ``MAX_INT4_WEIGHT``; padded here with zeros.
        importance: what an error in each column costs, relative to others, at least 0,
            ``[K]``; ``None``: the same everywhere.
    """
    rows, columns = matrix.shape
    groups = _by_group(matrix)
    costs = np.tile(_costs(importance, columns).reshape(-1, GROUP).T, rows)
    low = groups.min(axis=0)
    extent = groups.max(axis=0) - low
    slope, start = _best_grid(_divided(groups - low, extent), costs)
    d = (slope * extent).astype(np.float16)
    steps = d.astype(np.float32)
    m = to_bfloat16(low + start * extent + steps * np.float32(INT4_MIDDLE))
    quanta = _divided(groups - from_bfloat16(m), steps) + np.float32(INT4_MIDDLE)
    return FourBitGroups(
        np.ascontiguousarray(_rounded(quanta).astype(np.uint8).T).reshape(rows, -1),
        d.reshape(rows, -1),
        m.reshape(rows, -1),
    )


def _by_group(matrix: _Floats) -> _Floats:
    """``[N, K]``, padded with zeros, to a column for each group: ``[32, G]``.

    So every sum over a group runs over long rows.
    """
    padding = round_up(matrix.shape[1], GROUP) - matrix.shape[1]
    by_row = np.pad(matrix, ((0, 0), (0, padding))).reshape(-1, GROUP)
    return np.ascontiguousarray(by_row.T)


def _costs(importance: _Floats | None, columns: int) -> _Floats:
    """Share of each column in the cost of its group, ``[Kp]``; pads cost nothing."""
    is_real = np.arange(round_up(columns, GROUP)).reshape(-1, GROUP) < columns
    costs = is_real.astype(np.float32)
    if importance is not None:
        groups = np.pad(importance, (0, costs.size - columns)).reshape(-1, GROUP)
        mean = groups.mean(axis=1, keepdims=True)
        costs *= np.where(mean > 0, groups + np.float32(_LEAST_COST) * mean, 1)
    shares: _Floats = costs / costs.sum(axis=1, keepdims=True)
    return shares.reshape(-1)


def _best_grid(unit: _Floats, costs: _Floats) -> tuple[_Floats, _Floats]:
    """Find steps and starts of the grids nearest to numbers in 0 to 1.

    Args:
        unit: a column for each group, ``[32, G]``.
        costs: of each number's error, ``[32, G]``, one in sum for each group.

    Returns:
        Steps and starts, ``[G]``.
    """
    least = np.full(unit.shape[1], np.inf, np.float32)
    slope, start = np.zeros_like(least), np.zeros_like(least)
    for shrinkage in _SHRINKAGES:
        cut, step = (1 - shrinkage) / 2, shrinkage / _MAX_INT4
        quanta = _rounded((unit - cut) * np.float32(1 / step))
        tried = _fitted_line(unit, quanta, costs)
        better = tried[2] < least
        for kept, new in zip((slope, start, least), tried, strict=True):
            kept[better] = new[better]
    return slope, start


def _fitted_line(
    unit: _Floats, quanta: _Floats, costs: _Floats
) -> tuple[_Floats, _Floats, _Floats]:
    """Fit ``slope * q + start`` by least cost; gives both and the cost."""
    mean = _dots(costs, quanta)
    around: _Floats = quanta - mean
    weighed: _Floats = costs * around
    spread = _dots(weighed, around)
    is_flat = spread < _LEAST_SPREAD  # all quanta are equal: there is no slope
    slope: _Floats = np.where(is_flat, 0, _dots(weighed, unit) / (spread + is_flat))
    start: _Floats = _dots(costs, unit) - slope * mean
    missed: _Floats = unit - slope * quanta - start
    return slope, start, _dots(costs * missed, missed)


def _dots(left: _Floats, right: _Floats) -> _Floats:
    products: _Floats = np.einsum("kg,kg->g", left, right)
    return products


def _rounded(values: _Floats) -> _Floats:
    return np.clip(np.rint(values), 0, _MAX_INT4)


def _divided(groups: _Floats, by: _Floats) -> _Floats:
    """Divide each group; by next to nothing gives zero: such a group is one number."""
    inverse = np.divide(1, by, out=np.zeros_like(by), where=np.abs(by) >= _TINY)
    return groups * inverse
