"""Rows that products read, made and read by the formulae of ``native/abi.h``."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.cpu.abi import Format
from tests.backends.kernel_plan import activation_stride
from tests.backends.packed_matrix import from_bf16, padded_columns, to_bf16

_Array = NDArray[Any]

WEIGHT_FORMATS = {
    Format.F32: Format.F32,
    Format.BF16: Format.BF16,
    Format.INT8: Format.INT8,
    Format.INT4: Format.INT8,
}
"""By a weight's format, that of the activation it is multiplied with."""


def make_rows(
    kind: Format, rows: int, columns: int, random: np.random.Generator
) -> _Array:
    """Make random rows: uint8 ``[rows, stride]``, padded with zeros.

    INT8 rows hold -127 and 127 runs: sums in too few bits overflow there.
    """
    raw = np.zeros((rows, activation_stride(kind, columns)), np.uint8)
    values = random.normal(size=(rows, columns))
    if kind == Format.F32:
        raw.view(np.float32)[:, :columns] = values
    elif kind == Format.BF16:
        raw.view(np.uint16)[:, :columns] = to_bf16(values)
    else:
        q = random.integers(-127, 127, (rows, columns), endpoint=True)
        q[0], q[-1] = 127, -127
        groups = padded_columns(columns) // 32
        _put_int8(raw, q, random.uniform(1e-3, 1e-1, (rows, groups)))
    return raw


def _put_int8(raw: _Array, q: _Array, scales: _Array) -> None:
    columns, padded = q.shape[1], padded_columns(q.shape[1])
    groups = padded // 32
    raw.view(np.int8)[:, :columns] = q
    whole = raw.view(np.int8)[:, :padded].astype(np.int32)
    behind = raw.view(np.float32)[:, padded // 4 :]
    behind[:, :groups] = scales
    sums = behind[:, groups : 2 * groups]
    sums[...] = scales * whole.reshape(len(q), groups, 32).sum(axis=2)


def read_rows(kind: Format, raw: _Array, columns: int) -> _Array:
    """Read rows ``[rows, stride]``: float64 ``[rows, columns]``.

    Checks what must hold of any such row of numbers: zeros behind its end, sums that
    add up, none below -127.
    """
    padded = padded_columns(columns)
    if kind == Format.F32:
        numbers = raw.view(np.float32)[:, :padded].astype(np.float64)
    elif kind == Format.BF16:
        numbers = from_bf16(raw.view(np.uint16)[:, :padded])
    else:
        q = raw.view(np.int8)[:, :padded].astype(np.int32)
        groups = padded // 32
        behind = raw.view(np.float32)[:, padded // 4 :].astype(np.float64)
        scales, sums = behind[:, :groups], behind[:, groups : 2 * groups]
        assert (q != -128).all()
        by_group = q.reshape(len(raw), groups, 32) * scales[..., None]
        numbers = by_group.reshape(q.shape)
        _check_near(sums, by_group)
    is_whole = np.isfinite(numbers[:, :columns]).all(axis=1)
    assert not numbers[is_whole, columns:].any()
    return numbers[:, :columns]


def _check_near(got: _Array, terms: _Array) -> None:
    """Compare with sums over the last axis, but in rows that hold no numbers."""
    wanted, magnitude = terms.sum(axis=-1), np.abs(terms).sum(axis=-1)
    error = np.abs(got - wanted)
    assert (np.isnan(wanted) | (error <= 2e-6 * magnitude + 1e-37)).all()
