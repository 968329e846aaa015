"""Weights packed and read number by number, by the formulae of ``native/abi.h``.

One formula a format says where number (n, k) lies; packing writes there and the dense
matrix is read from there, so that the oracle sees what the kernels see.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.cpu.abi import Format
from tests.backends.guarded_memory import guarded

_Array = NDArray[Any]


def padded_rows(rows: int) -> int:
    """Round N up to whole blocks of 16."""
    return -(-rows // 16) * 16


def padded_columns(columns: int) -> int:
    """Round K up to whole groups of 32."""
    return -(-columns // 32) * 32


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A ``[rows, columns]`` matrix as the library takes it."""

    format: Format
    rows: int
    columns: int
    data: _Array
    """uint8, ends at a guard page."""
    scales: _Array | None = None
    """float16 ``[Np/16][Kp/32][16]``, flat; INT8 only."""
    bias: _Array | None = None
    """float32 ``[rows]``."""

    def dense(self) -> _Array:
        """Read every number: float64 ``[rows, columns]``, without the bias."""
        n, k = np.ogrid[: self.rows, : self.columns]
        width = padded_columns(self.columns)
        match self.format:
            case Format.F32:
                numbers = self.data.view(np.float32)[_f32_at(n, k, width)]
                return numbers.astype(np.float64)
            case Format.BF16:
                return from_bf16(self.data.view(np.uint16)[_bf16_at(n, k, width)])
            case Format.INT8:
                assert self.scales is not None
                numbers = self.data[_int8_at(n, k, width)].astype(np.float64) - 128
                return numbers * self.scales[_scale_at(n, k, width)].astype(np.float64)
        byte = self.data[_nibble_at(n, k, width)]
        q = np.where(k % 32 // 16 == 0, byte & 15, byte >> 4).astype(np.float64)
        d = self.data.view(np.float16)[_step_at(n, k, width)].astype(np.float64)
        return d * (q - 8) + self.offsets()[:, k[0] // 32]

    def largest_of_pairs(self) -> _Array:
        """Find the largest number that two groups of INT4 can hold.

        Returns:
            float64 ``[rows, ceil(Kp / 64)]``.
        """
        width = padded_columns(self.columns)
        n, k = np.ogrid[: self.rows, 0:width:32]
        d = self.data.view(np.float16)[_step_at(n, k, width)].astype(np.float64)
        m = self.offsets()
        largest = np.maximum(np.abs(m - 8 * d), np.abs(m + 7 * d))
        padded = np.pad(largest, ((0, 0), (0, largest.shape[1] % 2)))
        numbers: _Array = padded.reshape(self.rows, -1, 2).max(axis=2)
        return numbers

    def offsets(self) -> _Array:
        """Read every offset of INT4: float64 ``[rows, Kp / 32]``."""
        width = padded_columns(self.columns)
        n, k = np.ogrid[: self.rows, 0:width:32]
        return from_bf16(self.data.view(np.uint16)[_offset_at(n, k, width)])


def pack(
    kind: Format, rows: int, columns: int, random: np.random.Generator
) -> PackedMatrix:
    """Make a random matrix in a format; extremes of its numbers are in it."""
    n, k = np.ogrid[:rows, :columns]
    width, height = padded_columns(columns), padded_rows(rows)
    if kind == Format.F32:
        data = np.zeros(height * width, np.float32)
        data[_f32_at(n, k, width)] = random.normal(size=(rows, columns))
        return PackedMatrix(kind, rows, columns, guarded(data.view(np.uint8)))
    if kind == Format.BF16:
        words = np.zeros(height * width, np.uint16)
        words[_bf16_at(n, k, width)] = to_bf16(random.normal(size=(rows, columns)))
        return PackedMatrix(kind, rows, columns, guarded(words.view(np.uint8)))
    if kind == Format.INT8:
        bytes_ = np.full(height * width, 128, np.uint8)
        bytes_[_int8_at(n, k, width)] = _with_extremes(random, (rows, columns), 0, 255)
        scales = np.zeros(height * width // 32, np.float16)
        groups = np.arange(width // 32)[None] * 32
        shape = (rows, width // 32)
        scales[_scale_at(n, groups, width)] = random.uniform(1e-3, 1e-2, shape)
        return PackedMatrix(kind, rows, columns, guarded(bytes_), guarded(scales))
    return _pack_int4(rows, columns, random)


def _pack_int4(rows: int, columns: int, random: np.random.Generator) -> PackedMatrix:
    n, k = np.ogrid[:rows, :columns]
    width = padded_columns(columns)
    records = padded_rows(rows) // 16 * _num_records(width)
    data = np.zeros(records * 640, np.uint8)
    q = _with_extremes(random, (rows, columns), 0, 15)
    # Two numbers share a byte: adds, since each index comes twice.
    shifted = q << (k % 32 // 16 * 4).astype(np.uint8)
    np.add.at(data, _nibble_at(n, k, width), shifted)
    n, k = np.ogrid[:rows, 0:width:32]
    shape = (rows, width // 32)
    steps = data.view(np.float16)
    steps[_step_at(n, k, width)] = random.uniform(-0.01, 0.01, shape)
    offsets = to_bf16(random.uniform(-0.08, 0.08, shape))
    data.view(np.uint16)[_offset_at(n, k, width)] = offsets
    return PackedMatrix(Format.INT4, rows, columns, guarded(data))


def to_bf16(values: _Array) -> _Array:
    """Round to bfloat16, to nearest even: uint16 of the same shape."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(words: _Array) -> _Array:
    """Read bfloat16: float64 of the same shape."""
    bits = np.asarray(words, np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32).astype(np.float64)


def _with_extremes(
    random: np.random.Generator, shape: tuple[int, int], low: int, high: int
) -> _Array:
    numbers = random.integers(low, high, shape, dtype=np.uint8, endpoint=True)
    # A row of each extreme: sums in too few bits overflow there.
    numbers[0] = high
    numbers[-1] = low if shape[0] > 1 else high
    return numbers


def _f32_at(n: _Array, k: _Array, width: int) -> _Array:
    return (n // 16 * width + k) * 16 + n % 16


def _bf16_at(n: _Array, k: _Array, width: int) -> _Array:
    return ((n // 16 * (width // 2) + k // 2) * 16 + n % 16) * 2 + k % 2


def _int8_at(n: _Array, k: _Array, width: int) -> _Array:
    return ((n // 16 * (width // 4) + k // 4) * 16 + n % 16) * 4 + k % 4


def _scale_at(n: _Array, k: _Array, width: int) -> _Array:
    return (n // 16 * (width // 32) + k // 32) * 16 + n % 16


def _num_records(width: int) -> int:
    return (width + 63) // 64


def _record_at(n: _Array, k: _Array, width: int) -> _Array:
    return (n // 16 * _num_records(width) + k // 64) * 640


def _nibble_at(n: _Array, k: _Array, width: int) -> _Array:
    group = _record_at(n, k, width) + k // 32 % 2 * 256
    return group + (k % 16 // 4 * 16 + n % 16) * 4 + k % 4


def _step_at(n: _Array, k: _Array, width: int) -> _Array:
    return (_record_at(n, k, width) + 512) // 2 + k // 32 % 2 * 16 + n % 16


def _offset_at(n: _Array, k: _Array, width: int) -> _Array:
    return (_record_at(n, k, width) + 576) // 2 + n % 16 * 2 + k // 32 % 2
