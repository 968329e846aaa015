"""Rows that products read, made and read by the formulae of ``native/abi.h``."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.cpu.abi import Format
from tests.backends.kernel_plan import activation_stride
from tests.backends.packed_matrix import from_bf16, padded_columns, to_bf16

_Array = NDArray[Any]
_INT8_GROUP = np.dtype([("q", "i1", 32), ("scale", "<f4"), ("start", "<i4")])
_INT4_PAIR = np.dtype(
    [
        ("q", "i1", (2, 32)),
        ("exponents", "<i4", 2),
        ("starts", "<i4", 2),
        ("sums", "<u2", 2),
    ]
)


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


def eight_bit_groups(raw: _Array, columns: int) -> _Array:
    """View INT8's groups: records ``[M, Kp / 32]``."""
    size = padded_columns(columns) // 32 * _INT8_GROUP.itemsize
    return np.ndarray(
        (len(raw), size // _INT8_GROUP.itemsize),
        _INT8_GROUP,
        raw,
        strides=(raw.strides[0], _INT8_GROUP.itemsize),
    )


def four_bit_pairs(raw: _Array, columns: int) -> tuple[_Array, _Array]:
    """View INT4's pairs of groups, records ``[M, pairs]``, and units ``[M, 1]``."""
    count = (columns + 63) // 64
    end = count * _INT4_PAIR.itemsize
    strides = (raw.strides[0], _INT4_PAIR.itemsize)
    pairs = np.ndarray((len(raw), count), _INT4_PAIR, raw, strides=strides)
    unit = np.ndarray((len(raw), 1), np.float32, raw, end, strides=(raw.strides[0], 4))
    return pairs, unit


def put_int8(raw: _Array, q: _Array, random: np.random.Generator | None = None) -> None:
    """Put rows of INT8's activation; every scale is 1 where none is drawn."""
    groups = eight_bit_groups(raw, q.shape[1])
    whole = _by_group(q, groups.shape[1])
    groups["q"] = whole
    shape = whole.shape[:2]
    groups["scale"] = random.uniform(1e-3, 1e-1, shape) if random else 1
    groups["start"] = -128 * whole.sum(axis=2)


def _put_int4(raw: _Array, q: _Array, random: np.random.Generator) -> None:
    pairs, unit = four_bit_pairs(raw, q.shape[1])
    whole = _by_group(q, pairs.shape[1] * 2)
    n = random.integers(0, 12, whole.shape[:2], endpoint=True)
    n[random.random(n.shape) < 0.02] = 64
    n[:, padded_columns(q.shape[1]) // 32 :] = 0
    sums = whole.sum(axis=2)
    pairs["q"] = whole.reshape(*pairs.shape, 2, 32)
    pairs["exponents"] = (n << 23).reshape(*pairs.shape, 2)
    pairs["starts"] = -128 * sums.reshape(*pairs.shape, 2)
    pairs["sums"] = to_bf16(sums * 2.0 ** (n + 4)).reshape(*pairs.shape, 2)
    unit[...] = random.uniform(1e-6, 1e-1, unit.shape)


def rounded_sums(raw: _Array, columns: int) -> tuple[_Array, _Array]:
    """Give what offsets are multiplied with in rows of INT4's, and what it stands for.

    Returns:
        Sums of groups as they are stored and exact ones: float64 ``[M, Kp / 32]``.
    """
    pairs, unit = four_bit_pairs(raw, columns)
    groups = padded_columns(columns) // 32
    stored = from_bf16(pairs["sums"]).reshape(len(raw), -1)[:, :groups] * unit / 16
    exact = _read_fours(raw, columns).reshape(len(raw), -1, 32).sum(axis=2)
    return stored, exact[:, :groups]


def _by_group(q: _Array, groups: int) -> _Array:
    """Pad with zeros: int32 ``[M, groups, 32]``."""
    padded = np.zeros((len(q), groups * 32), np.int32)
    padded[:, : q.shape[1]] = q
    return padded.reshape(len(q), groups, 32)


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
        read = _read_eights if kind == Format.INT8 else _read_fours
        numbers = read(raw, columns)
    is_whole = np.isfinite(numbers[:, :columns]).all(axis=1)
    assert not numbers[is_whole, columns:].any()
    return numbers[:, :columns]


def _read_eights(raw: _Array, columns: int) -> _Array:
    groups = eight_bit_groups(raw, columns)
    q, scales = groups["q"].astype(np.int32), groups["scale"].astype(np.float64)
    is_whole = np.isfinite(scales).all(axis=1)
    assert (q != -128).all()
    assert (groups["start"] == -128 * q.sum(axis=2))[is_whole].all()
    numbers: _Array = q * scales[..., None]
    return numbers.reshape(len(raw), -1)


def _read_fours(raw: _Array, columns: int) -> _Array:
    pairs, unit = four_bit_pairs(raw, columns)
    q, n = pairs["q"].astype(np.int32), pairs["exponents"] >> 23
    sums, is_whole = q.sum(axis=3), np.isfinite(unit[:, 0])
    assert (q != -128).all()
    assert (n << 23 == pairs["exponents"]).all()
    assert ((n >= 0) & (n <= 64)).all()
    assert (pairs["starts"] == -128 * sums)[is_whole].all()
    rounded = from_bf16(to_bf16(sums * 2.0 ** (n + 4)))
    assert (from_bf16(pairs["sums"]) == rounded)[is_whole].all()
    if columns % 64 in range(1, 33):  # a group too many
        for name in ("exponents", "starts", "sums"):
            assert not pairs[name][:, -1, 1].any()
    scales = unit.astype(np.float64)[..., None] * 2.0**n
    numbers: _Array = q * scales[..., None]
    return numbers.reshape(len(raw), -1)
