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
    Format.INT8: np.int8,
}


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
    def data_bytes(self) -> int:
        """Of the vectors, without scales."""
        width = np.dtype(_NUMBERS[self.format]).itemsize
        return self.num_rows * self.head_dim * width

    @property
    def num_bytes(self) -> int:
        """Of the cell."""
        return self.data_bytes + 4 * self.num_rows * (self.format == Format.INT8)


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
                self._numbers()[...] = np.rint(values / scales[..., None])
                self._scales()[...] = scales

    def read(self) -> _Array:
        """Read them all: float64 ``[layers, 2, blocks, heads, tokens, head_dim]``."""
        match self.shape.format:
            case Format.F32:
                return self._numbers().astype(np.float64)
            case Format.BF16:
                return from_bf16(self._numbers())
        return self._numbers() * self._scales().astype(np.float64)[..., None]

    def untouched(self) -> _Array:
        """Tell what nobody wrote: bool ``[layers, 2, blocks, heads, tokens]``."""
        raw = self._numbers().view(np.uint8)
        untouched: _Array = (raw == _UNTOUCHED).all(axis=-1)
        if self.shape.format == Format.INT8:
            scales = self._scales().view(np.uint8).reshape(*untouched.shape, 4)
            untouched &= (scales == _UNTOUCHED).all(axis=-1)
        return untouched

    def spoil(self, vectors: _Array) -> None:
        """Leave no numbers where a mask as of ``untouched`` says so."""
        self._numbers().view(np.uint8)[vectors] = 0xFF
        if self.shape.format == Format.INT8:
            self._scales()[vectors] = np.nan

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
        scales = self.bytes[..., self.shape.data_bytes :].view(np.float32)
        return scales.reshape(
            *self.bytes.shape[:3],
            self.shape.num_kv_heads,
            self.shape.block_size,
            copy=False,
        )
