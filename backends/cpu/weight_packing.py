"""Matrices in the layouts of the kernels, and back: see ``native/abi.h``.

Layouts put tiles of 16 rows outermost, so that a matrix may be packed some tiles at a
time and the parts written one behind the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from .abi import ALIGNMENT_BYTES, Format

TILE_ROWS: Final = 16
GROUP: Final = 32
"""Columns that share a scale in int8 and int4; every format pads columns to it."""
INT4_RECORD_BYTES: Final = 640
"""Of 16 rows times two groups."""
INT4_MIDDLE: Final = 8
_INT8_ZERO: Final = 128
_ALIGNMENT_HALVES: Final = ALIGNMENT_BYTES // 2
_INT4_RECORD: Final = np.dtype(
    [
        ("q", "u1", (2, 4, TILE_ROWS, 4)),
        ("d", "<f2", (2, TILE_ROWS)),
        ("m", "<u2", (TILE_ROWS, 2)),
    ]
)

Bytes = NDArray[np.uint8]
_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class FourBitGroups:
    """Rows in groups of 32 columns: a weight is ``d * (q - 8) + m`` of its group."""

    quanta: NDArray[np.uint8]
    """0 to 15, ``[N, K]``, K a multiple of 32."""
    d: NDArray[np.float16]
    """``[N, K / 32]``."""
    m: NDArray[np.uint16]
    """bfloat16, ``[N, K / 32]``."""

    @property
    def is_finite(self) -> bool:
        """Whether all steps and offsets are numbers."""
        offsets = from_bfloat16(self.m)
        return bool(np.isfinite(self.d).all() and np.isfinite(offsets).all())


@dataclass(frozen=True, slots=True)
class EightBitGroups:
    """Rows in groups of 32 columns: a weight is ``scale * q`` of its group."""

    quanta: NDArray[np.int8]
    """``[N, K]``, K a multiple of 32."""
    scales: NDArray[np.float16]
    """``[N, K / 32]``."""

    @property
    def is_finite(self) -> bool:
        """Whether all scales are numbers."""
        return bool(np.isfinite(self.scales).all())


_Groups = TypeVar("_Groups", FourBitGroups, EightBitGroups)


def joined(parts: Sequence[_Groups]) -> _Groups:
    """Put rows under rows."""
    kind = type(parts[0])
    names = [field.name for field in fields(kind)]
    return kind(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


def round_up(value: int, multiple: int) -> int:
    """Give the next multiple that is no smaller."""
    return -(-value // multiple) * multiple


def packed_bytes(form: Format, rows: int, columns: int) -> int:
    """Bytes of a packed matrix, padding included, scales not."""
    if form is Format.INT4:
        records = round_up(columns, 2 * GROUP) // (2 * GROUP)
        return round_up(rows, TILE_ROWS) // TILE_ROWS * records * INT4_RECORD_BYTES
    cells = round_up(rows, TILE_ROWS) * round_up(columns, GROUP)
    return cells * {Format.F32: 4, Format.BF16: 2, Format.INT8: 1}[form]


def packed_scales(rows: int, columns: int) -> int:
    """Scales of a packed int8 matrix, padded to whole cache lines."""
    num_groups = round_up(columns, GROUP) // GROUP
    return round_up(round_up(rows, TILE_ROWS) * num_groups, _ALIGNMENT_HALVES)


def pack_float32(matrix: NDArray[np.float32]) -> Bytes:
    """``[N, K]`` to ``[Np/16][Kp][16]``, flat bytes."""
    return _flat(_tiles(_padded(matrix, 0)).swapaxes(1, 2))


def pack_bfloat16(matrix: NDArray[np.float32]) -> Bytes:
    """``[N, K]``, rounded to nearest even, to ``[Np/16][Kp/2][16][2]``, flat bytes."""
    return _flat(_interleaved(_padded(to_bfloat16(matrix), 0), 2))


def pack_int8(groups: EightBitGroups) -> tuple[Bytes, NDArray[np.float16]]:
    """``[N, Kp]`` to quanta ``[Np/16][Kp/4][16][4]``, 128 added, flat bytes.

    Scales come beside them, ``[Np/16][Kp/32][16]``, flat.
    """
    shifted = groups.quanta.view(np.uint8) ^ np.uint8(_INT8_ZERO)
    scales = _tiles(_padded(groups.scales, 0, 1)).swapaxes(1, 2)
    data = _flat(_interleaved(_padded(shifted, _INT8_ZERO), 4))
    return data, np.ascontiguousarray(scales).reshape(-1)


def pack_int4(groups: FourBitGroups) -> Bytes:
    """``[N, Kp]`` to ``[Np/16][ceil(Kp/64)]`` records, flat bytes."""
    tiles = _tiles(_padded(groups.quanta, 0, 2 * GROUP))
    halves = tiles.reshape(len(tiles), TILE_ROWS, -1, 2, 2, 4, 4)
    records = np.empty((len(halves), halves.shape[2]), _INT4_RECORD)
    low, high = halves[:, :, :, :, 0], halves[:, :, :, :, 1]
    records["q"] = (low | high << 4).transpose(0, 2, 3, 4, 1, 5)
    records["d"] = _pairs_of_groups(groups.d).transpose(0, 2, 3, 1)
    records["m"] = _pairs_of_groups(groups.m).transpose(0, 2, 1, 3)
    return records.reshape(-1).view(np.uint8)


def unpack(
    form: Format,
    data: Bytes,
    scales: NDArray[np.float16] | None,
    shape: tuple[int, int],
) -> NDArray[np.float32]:
    """Give back the matrix that a packed one stands for: float32 ``[N, K]``.

    Args:
        form: the packed one's.
        data: flat bytes.
        scales: flat, of int8; what pads them may follow.
        shape: ``(N, K)``.
    """
    rows, columns = shape
    depth = round_up(columns, GROUP)
    if form is Format.F32:
        wide = _untiled(data.view("<f4").reshape(-1, depth, TILE_ROWS).swapaxes(1, 2))
    elif form is Format.BF16:
        wide = from_bfloat16(_deinterleaved(data.view("<u2"), depth, 2))
    elif form is Format.INT8:
        assert scales is not None, "int8 has scales"
        wide = _unpack_int8(data, scales, depth)
    else:
        wide = _unpack_int4(data, depth)
    return np.ascontiguousarray(wide[:rows, :columns])


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest even; the upper half of float32's bits. NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    # The carry would turn a NaN whose low bits alone are set into infinity.
    rounded[np.isnan(values)] = 0x7FC0
    return rounded.astype(np.uint16)


def from_bfloat16(values: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Widen, exactly."""
    return (values.astype(np.uint32) << 16).view(np.float32)


def _unpack_int8(
    data: Bytes, scales: NDArray[np.float16], depth: int
) -> NDArray[np.float32]:
    quanta = _deinterleaved(data, depth, 4).astype(np.float32) - _INT8_ZERO
    groups = quanta.reshape(-1, depth // GROUP, GROUP)
    cells = scales[: groups.shape[0] * groups.shape[1]]
    tiles = cells.reshape(-1, groups.shape[1], TILE_ROWS).swapaxes(1, 2)
    wide = groups * _untiled(tiles)[..., None].astype(np.float32)
    return wide.reshape(quanta.shape)


def _unpack_int4(data: Bytes, depth: int) -> NDArray[np.float32]:
    records = data.view(_INT4_RECORD).reshape(-1, -(-depth // (2 * GROUP)))
    packed = records["q"].transpose(0, 4, 1, 2, 3, 5)  # tile, row, record, i, j, b
    halves = np.stack((packed & 15, packed >> 4), axis=4).astype(np.float32)
    quanta = halves.reshape(*halves.shape[:4], GROUP) - INT4_MIDDLE
    d = records["d"].transpose(0, 3, 1, 2)[..., None].astype(np.float32)
    m = from_bfloat16(records["m"]).transpose(0, 2, 1, 3)[..., None]
    rows = len(records) * TILE_ROWS
    return np.asarray((d * quanta + m).reshape(rows, -1)[:, :depth])


def _pairs_of_groups(numbers: NDArray[_T]) -> NDArray[_T]:
    """``[tile][16][record][2]``, of one number a group."""
    return _tiles(_padded(numbers, 0, 2)).reshape(
        -1, TILE_ROWS, round_up(numbers.shape[1], 2) // 2, 2
    )


def _padded(matrix: NDArray[_T], value: int, multiple: int = GROUP) -> NDArray[_T]:
    rows, columns = matrix.shape
    padding = (round_up(rows, TILE_ROWS) - rows, round_up(columns, multiple) - columns)
    if padding == (0, 0):
        return matrix
    return np.pad(matrix, [(0, n) for n in padding], constant_values=value)


def _tiles(matrix: NDArray[_T]) -> NDArray[_T]:
    return matrix.reshape(-1, TILE_ROWS, matrix.shape[1])


def _untiled(tiles: NDArray[_T]) -> NDArray[_T]:
    return tiles.reshape(-1, tiles.shape[2])


def _interleaved(matrix: NDArray[_T], run: int) -> NDArray[_T]:
    """``[tile][K/run][16][run]``: neighbours of a row stay together."""
    rows, columns = matrix.shape
    cells = matrix.reshape(rows // TILE_ROWS, TILE_ROWS, columns // run, run)
    return cells.swapaxes(1, 2)


def _deinterleaved(data: NDArray[_T], depth: int, run: int) -> NDArray[_T]:
    cells = data.reshape(-1, depth // run, TILE_ROWS, run)
    return cells.swapaxes(1, 2).reshape(-1, depth)


def _flat(array: NDArray[np.generic]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
