"""Rows that products read, made and read by the formulae of ``native/abi.h``."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.cpu.abi import Format
from tests.backends.kernel_plan import activation_stride
from tests.backends.packed_matrix import from_bf16, padded_columns, to_bf16

_Array = NDArray[Any]


def make_rows(
    kind: Format, rows: int, columns: int, random: np.random.Generator
) -> _Array:
    """Make random rows: uint8 ``[rows, stride]``, padded with zeros.

    Rows of 8 bits hold runs of -127 and 127: sums in too few bits overflow there.
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
        put = put_int8 if kind == Format.INT8 else _put_int4
        put(raw, q, random)
    return raw


def put_int8(raw: _Array, q: _Array, random: np.random.Generator | None = None) -> None:
    """Put rows of INT8's activation; every scale is 1 where none is drawn."""
    whole = _put_quanta(raw, q)
    rows, groups, _ = whole.shape
    behind = raw.view(np.float32)[:, groups * 8 :]
    behind[:, :groups] = random.uniform(1e-3, 1e-1, (rows, groups)) if random else 1
    starts = raw.view(np.int32)[:, groups * 9 : groups * 10]
    starts[...] = -128 * whole.sum(axis=2)


def _put_int4(raw: _Array, q: _Array, random: np.random.Generator) -> None:
    whole = _put_quanta(raw, q)
    rows, groups, _ = whole.shape
    n = random.integers(0, 12, (rows, groups), endpoint=True)
    n[random.random((rows, groups)) < 0.02] = 64
    raw.view(np.int32)[:, groups * 8 : groups * 9] = n << 23
    behind = raw.view(np.float32)[:, groups * 9 :]
    behind[:, :groups] = whole.sum(axis=2) * 2.0**n
    behind[:, groups] = 2.0 ** random.integers(-30, 3, rows)


def _put_quanta(raw: _Array, q: _Array) -> _Array:
    """Give them by group, padding included: int32 ``[M, Kp / 32, 32]``."""
    columns, padded = q.shape[1], padded_columns(q.shape[1])
    raw.view(np.int8)[:, :columns] = q
    return raw.view(np.int8)[:, :padded].astype(np.int32).reshape(len(q), -1, 32)


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
        numbers = _read_groups(kind, raw, padded)
    is_whole = np.isfinite(numbers[:, :columns]).all(axis=1)
    assert not numbers[is_whole, columns:].any()
    return numbers[:, :columns]


def _read_groups(kind: Format, raw: _Array, padded: int) -> _Array:
    q = raw.view(np.int8)[:, :padded].astype(np.int32)
    assert (q != -128).all()
    by_group, groups = q.reshape(len(raw), -1, 32), padded // 32
    sums = by_group.sum(axis=2)
    floats, whole = raw.view(np.float32), raw.view(np.int32)
    first, second = slice(groups * 8, groups * 9), slice(groups * 9, groups * 10)
    if kind == Format.INT8:
        scales = floats[:, first].astype(np.float64)
        is_whole = np.isfinite(scales).all(axis=1)
        assert (whole[:, second] == -128 * sums)[is_whole].all()
    else:
        n, unit = whole[:, first] >> 23, floats[:, [groups * 10]].astype(np.float64)
        is_whole = np.isfinite(unit[:, 0])
        assert (n << 23 == whole[:, first]).all()
        assert ((n >= 0) & (n <= 64)).all()
        assert (floats[:, second] == sums * 2.0**n)[is_whole].all()
        assert (np.frexp(unit[is_whole])[0] == 0.5).all()
        scales = unit * 2.0**n
    numbers: _Array = by_group * scales[..., None]
    return numbers.reshape(q.shape)
