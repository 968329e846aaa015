"""Reads and writes K and V as TensorRT-LLM's kernel does: by raw addresses.

Knows pool pointers, mapping and offsets, no layout and no array of ours. Typed from the
formula of ``kernels/kvCacheUtils.h`` (TensorRT-LLM 1.2), not from the code under test.
"""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RawKV:
    """What a kernel is given, and the sizes that its configuration holds."""

    pointers: NDArray[np.int64]
    """``[pools, 2]``: primary, secondary or 0."""
    mapping: NDArray[np.int32]
    """``[layers, 2]``: pool, layer inside it."""
    offsets: NDArray[np.int32]
    """``[pools, seqs, 2, max_blocks]``."""
    num_heads: int
    block_size: int
    head_dim: int
    element_bytes: int
    kv_factor: int = 2

    def address(
        self, layer: int, seq: int, field: int, token: int, head: int, dim: int
    ) -> int:
        """Where one number lies: the kernel's own arithmetic, in its own order."""
        pool, layer_in_pool = (int(value) for value in self.mapping[layer])
        cell_bytes = (
            self.block_size * self.num_heads * self.head_dim * self.element_bytes
        )
        offset = int(self.offsets[pool, seq, field, token // self.block_size])
        is_secondary = offset < 0
        base = int(self.pointers[pool, int(is_secondary)])
        assert base, "the kernel would follow a null pointer"
        base += layer_in_pool * self.kv_factor * cell_bytes
        base += (offset & 0x7FFFFFFF) * cell_bytes
        inside = head * self.block_size + token % self.block_size
        return base + (inside * self.head_dim + dim) * self.element_bytes

    def read(self, layer: int, seq: int, field: int, token: int) -> NDArray[np.uint8]:
        """One token's bytes: uint8 ``[heads, head_dim * element_bytes]``."""
        return np.stack(
            [self._run(layer, seq, field, token, head) for head in self._heads()]
        )

    def write(
        self, layer: int, seq: int, field: int, token: int, data: NDArray[np.uint8]
    ) -> None:
        """Put one token's bytes, as ``read`` returns them."""
        for head in self._heads():
            self._run(layer, seq, field, token, head)[:] = data[head]

    def _heads(self) -> range:
        return range(self.num_heads)

    def _run(self, layer: int, seq: int, field: int, token: int, head: int) -> Any:
        start = self.address(layer, seq, field, token, head, 0)
        num_bytes = self.head_dim * self.element_bytes
        memory = (ctypes.c_uint8 * num_bytes).from_address(start)
        return np.frombuffer(memory, dtype=np.uint8)
