"""The paged KV pool: memory of ours, seen by OpenVINO as one tensor a layer, K and V.

Layer-first, ``[layer, k|v, block, kv_head, token, head_dim]``, where the precision is a
plain one; otherwise ``[layer, block, cell]`` for K and for V, the cell being whatever
OpenVINO packs into a block (quantised numbers and their scales).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from hybrid.api import BlockCopy, ConfigError

ALIGNMENT_BYTES: Final = 64
"""OpenVINO copies tensors that are not aligned to a cache line."""


@dataclass(frozen=True, slots=True)
class CellShape:
    """What one block holds in one layer, for K or for V."""

    dims: tuple[int, ...]
    """``(kv_heads, rows, columns)``: ``(kv_heads, 32, head_dim)`` in plain precisions,
    more rows or columns where scales stand beside the numbers."""
    element_type: ov.Type

    @property
    def num_bytes(self) -> int:
        """Bytes of the cell."""
        num_bits = int(np.prod(self.dims)) * int(self.element_type.bitwidth)
        return num_bits // 8


class KVPool:
    """Allocated once, never moved; blocks are copied here and written by OpenVINO.

    Raises:
        ConfigError: the memory cannot be had.
    """

    def __init__(
        self, key: CellShape, value: CellShape, num_layers: int, num_blocks: int
    ) -> None:
        self._key, self._value = key, value
        self.num_blocks: Final = num_blocks
        self._keys, self._values = _allocate(key, value, num_layers, num_blocks)

    def key_tensor(self, layer: int) -> ov.Tensor:
        """The layer's K as OpenVINO sees it: this pool's own memory."""
        return _tensor(self._keys[layer], self._key)

    def value_tensor(self, layer: int) -> ov.Tensor:
        """The layer's V, as ``key_tensor``."""
        return _tensor(self._values[layer], self._value)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks over all layers, in order (copy on write)."""
        for copy in copies:
            self._keys[:, copy.target] = self._keys[:, copy.source]
            self._values[:, copy.target] = self._values[:, copy.source]


def _allocate(
    key: CellShape, value: CellShape, num_layers: int, num_blocks: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Allocate K and V: uint8 ``[layer, block, cell bytes]`` each, views of one run.

    Within a layer K comes before V, so that plain precisions make the layer-first
    layout. numpy asks the system for zeroed pages, which cost nothing until written.
    """
    key_bytes, value_bytes = (num_blocks * cell.num_bytes for cell in (key, value))
    layer_bytes = _aligned(key_bytes) + _aligned(value_bytes)
    total = num_layers * layer_bytes
    try:
        memory = np.zeros(total + ALIGNMENT_BYTES, dtype=np.uint8)
    except MemoryError as error:
        raise ConfigError(
            f"KV pool of {total:,} bytes ({num_blocks} blocks) does not fit in the "
            "memory of this machine; lower num_kv_blocks or kv_cache_memory"
        ) from error
    start = -memory.ctypes.data % ALIGNMENT_BYTES
    layers = memory[start : start + total].reshape(num_layers, layer_bytes)
    first_value = _aligned(key_bytes)
    keys = layers[:, :key_bytes]
    values = layers[:, first_value : first_value + value_bytes]
    shape = (num_layers, num_blocks)
    # Slices of rows split along their dense axis stay views.
    return (
        keys.reshape(*shape, key.num_bytes, copy=False),
        values.reshape(*shape, value.num_bytes, copy=False),
    )


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _tensor(cells: NDArray[np.uint8], cell: CellShape) -> ov.Tensor:
    """Share ``[block, cell bytes]`` with OpenVINO as ``[block, *cell.dims]``."""
    shape = ov.Shape([len(cells), *cell.dims])
    return ov.Tensor(cells.reshape(-1, copy=False), shape, cell.element_type)
