"""The KV pool of the kernels: zeroed pages, layer-first, copied by block.

A cell is one block's K or V in one layer::

    float32, bfloat16   [head][token][dim]
    int8                as attention multiplies them, dim padded to 16, see
                        ``native/abi.h``; then float32 scales [head][token]

and the pool is ``[layer][k|v][block]`` of cells, those of int8 padded to 64 bytes.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from hybrid.backends.interface import KVSpec
from hybrid.bridge import ELEMENT_BYTES
from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.plan import BlockCopy

from .abi import ALIGNMENT_BYTES, Format, KvPool

FORMATS: Final = {
    "float32": Format.F32,
    "bfloat16": Format.BF16,
    "int8": Format.INT8,
}
"""By dtype, as the kernels call it."""
_SCALE_BYTES: Final = 4
_COLUMNS: Final = 16
"""A multiple of these holds a vector of int8."""
NUM_KV: Final = 2


def cell_bytes(*, num_kv_heads: int, block_size: int, head_dim: int, dtype: str) -> int:
    """Bytes of one block's K, or V, in one layer."""
    num_vectors = num_kv_heads * block_size
    if dtype != "int8":
        return num_vectors * head_dim * ELEMENT_BYTES[dtype]
    columns = _round_up(head_dim, _COLUMNS)
    return _round_up(num_vectors * (columns + _SCALE_BYTES), ALIGNMENT_BYTES)


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


class KVCells:
    """Memory for all layers; never moved.

    Raises:
        ConfigError: it cannot be had; names the bytes.
    """

    def __init__(self, spec: KVSpec, *, num_blocks: int, block_size: int) -> None:
        """Allocate.

        Args:
            spec: sizes and dtype.
            num_blocks: the null block included.
            block_size: tokens of a block.
        """
        cell = cell_bytes(
            num_kv_heads=spec.num_kv_heads,
            block_size=block_size,
            head_dim=spec.head_dim,
            dtype=spec.dtype,
        )
        shape = (spec.num_layers, NUM_KV, num_blocks, cell)
        num_bytes = spec.num_layers * NUM_KV * num_blocks * cell
        try:
            # The system's zeroed pages cost nothing until they are written.
            memory = np.zeros(num_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
        except (MemoryError, ValueError) as error:
            raise ConfigError(
                f"KV pool of {num_bytes:,} bytes ({num_blocks} blocks) does not fit in "
                "memory; lower num_kv_blocks or kv_cache_memory"
            ) from error
        start = -memory.ctypes.data % ALIGNMENT_BYTES
        self._cells: Final = memory[start : start + num_bytes].reshape(shape)
        self._format: Final = FORMATS[spec.dtype]
        self._block_size: Final = block_size

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks over all layers, in order (copy on write)."""
        for copy in copies:
            self._cells[:, :, copy.target] = self._cells[:, :, copy.source]

    def describe(self) -> KvPool:
        """Say where the cells are; holds no reference."""
        layer, kv, block, _ = self._cells.strides
        return KvPool(
            base=self._cells.ctypes.data,
            block_stride=block,
            layer_stride=layer,
            kv_stride=kv,
            num_blocks=self._cells.shape[2],
            format=self._format,
            block_size=self._block_size,
        )
