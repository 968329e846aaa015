"""A paged cache in numpy, read and written by the formulae of ``native/abi.h``."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.cpu.abi import Format, KvPool
from tests.backends.guarded_memory import guarded
from tests.backends.packed_matrix import from_bf16, to_bf16

_Array = NDArray[Any]
_UNTOUCHED: Final = 0xA5
_NUMBERS: Final = {
    Format.F32: np.float32,
    Format.BF16: np.uint16,
    Format.INT8: np.uint8,
}
_LINE_BYTES: Final = 64
_KEY_GROUP: Final = (16, 4)
"""Tokens of a group of INT8, and how many numbers of each lie side by side."""
_VALUE_GROUP: Final = (4, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellShape:
    """Of one block's K or V in one layer: ``[heads][tokens][head_dim]``."""

    num_kv_heads: int
    block_size: int
    head_dim: int
    format: Format

    @property
    def num_rows(self) -> int:
        """Heads times tokens: the vectors in a cell."""
        return self.num_kv_heads * self.block_size

    @property
    def num_columns(self) -> int:
        """What a vector takes: INT8 pads it to 16 numbers."""
        if self.format == Format.INT8:
            return -(-self.head_dim // 16) * 16
        return self.head_dim

    @property
    def data_bytes(self) -> int:
        """Of the vectors, without scales."""
        width = np.dtype(_NUMBERS[self.format]).itemsize
        return self.num_rows * self.num_columns * width

    @property
    def num_bytes(self) -> int:
        """Of the cell."""
        if self.format != Format.INT8:
            return self.data_bytes
        return -(-(self.data_bytes + 4 * self.num_rows) // _LINE_BYTES) * _LINE_BYTES

    def places(self, kv: int) -> _Array:
        """Say at which bytes INT8's lie: ``[heads, tokens, num_columns]``."""
        group, run = _VALUE_GROUP if kv else _KEY_GROUP
        width, rows = self.num_columns, []
        head = np.arange(self.block_size * width)
        for first in range(0, self.block_size, group):
            n = min(group, self.block_size - first)
            part = head[first * width : (first + n) * width]
            part = part.reshape(width // run, n, run).transpose(1, 0, 2)
            rows.append(part.reshape(n, width))
        heads = np.arange(self.num_kv_heads) * head.size
        return heads[:, None, None] + np.concatenate(rows)


class Cells:
    """The cells of all layers and blocks; the last one ends at a guard page."""

    def __init__(self, shape: CellShape, *, num_layers: int, num_blocks: int) -> None:
        """Fill them with bytes that show whether they were written."""
        self.shape: Final = shape
        whole = (num_layers, 2, num_blocks, shape.num_bytes)
        self.bytes: Final = guarded(np.full(whole, _UNTOUCHED, np.uint8))

    def pool(self) -> KvPool:
        """Describe them to the library."""
        layer, kv, block, _ = self.bytes.strides
        return KvPool(
            base=self.bytes.ctypes.data,
            block_stride=block,
            layer_stride=layer,
            kv_stride=kv,
            num_blocks=self.bytes.shape[2],
            format=self.shape.format,
            block_size=self.shape.block_size,
        )

    def write(self, values: _Array) -> None:
        """Store float numbers ``[layers, 2, blocks, heads, tokens, head_dim]``."""
        match self.shape.format:
            case Format.F32:
                self._numbers()[...] = values
            case Format.BF16:
                self._numbers()[...] = to_bf16(values)
            case Format.INT8:
                scales = np.abs(values).max(axis=-1).astype(np.float32) / 127
                whole = np.rint(values / scales[..., None]).astype(np.int8)
                self._put_bytes(0, whole[:, 0].view(np.uint8) ^ 0x80)
                self._put_bytes(1, whole[:, 1].view(np.uint8))
                self._scales()[...] = scales

    def read(self) -> _Array:
        """Read them all: float64 ``[layers, 2, blocks, heads, tokens, head_dim]``."""
        match self.shape.format:
            case Format.F32:
                return self._numbers().astype(np.float64)
            case Format.BF16:
                return from_bf16(self._numbers())
        keys, values = self._bytes_of(0) ^ 0x80, self._bytes_of(1)
        whole = np.stack([keys, values], axis=1).view(np.int8)
        return whole * self._scales().astype(np.float64)[..., None]

    def untouched(self) -> _Array:
        """Tell what nobody wrote: bool ``[layers, 2, blocks, heads, tokens]``."""
        if self.shape.format != Format.INT8:
            raw = self._numbers().view(np.uint8)
            return np.asarray((raw == _UNTOUCHED).all(axis=-1))
        raw = np.stack([self._bytes_of(0), self._bytes_of(1)], axis=1)
        scales = self._scales().view(np.uint8).reshape(*raw.shape[:-1], 4)
        return np.asarray(
            (raw == _UNTOUCHED).all(axis=-1) & (scales == _UNTOUCHED).all(axis=-1)
        )

    def has_clean_padding(self) -> bool:
        """Tell whether nobody wrote what belongs to no token's four numbers, or one."""
        if self.shape.format != Format.INT8:
            return True
        scales = self.shape.data_bytes + 4 * self.shape.num_rows
        clean = (self.bytes[..., scales:] == _UNTOUCHED).all()
        for kv in (0, 1):
            run = _VALUE_GROUP[1] if kv else _KEY_GROUP[1]
            first = -(-self.shape.head_dim // run) * run
            columns = self.shape.places(kv)[..., first:]
            clean &= (self.bytes[:, kv][..., columns] == _UNTOUCHED).all()
        return bool(clean)

    def spoil(self, vectors: _Array) -> None:
        """Leave no numbers where a mask as of ``untouched`` says so."""
        if self.shape.format != Format.INT8:
            self._numbers().view(np.uint8)[vectors] = 0xFF
            return
        for kv in (0, 1):
            raw = self._bytes_of(kv)
            raw[vectors[:, kv]] = 0xFF
            self._put_bytes(kv, raw)
        self._scales()[vectors] = np.nan

    def _bytes_of(self, kv: int) -> _Array:
        """Copy INT8's, as they are: ``[layers, blocks, heads, tokens, head_dim]``."""
        places = self.shape.places(kv)[..., : self.shape.head_dim]
        return self.bytes[:, kv][..., places]

    def _put_bytes(self, kv: int, raw: _Array) -> None:
        places = self.shape.places(kv)[..., : self.shape.head_dim]
        self.bytes[:, kv][..., places] = raw

    def _numbers(self) -> _Array:
        shape = self.shape
        data = self.bytes[..., : shape.data_bytes].view(_NUMBERS[shape.format])
        return data.reshape(
            *self.bytes.shape[:3],
            shape.num_kv_heads,
            shape.block_size,
            shape.head_dim,
            copy=False,
        )

    def _scales(self) -> _Array:
        first, size = self.shape.data_bytes, 4 * self.shape.num_rows
        scales = self.bytes[..., first : first + size].view(np.float32)
        return scales.reshape(
            *self.bytes.shape[:3],
            self.shape.num_kv_heads,
            self.shape.block_size,
            copy=False,
        )
