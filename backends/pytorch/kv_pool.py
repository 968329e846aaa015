"""The paged KV pool in torch: allocated once, written by slot, copied by block.

Both physical orders keep one head of one (block, layer, K or V) as a dense
``[block_size, head_dim]`` run, a "row". That of (block, head) in a layer's K or V is
``block * row_stride + head``, counted from the first row of that layer's K or V.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from hybrid.bridge import KVLayout
from hybrid.bridge.cell_check import check_cells
from hybrid.bridge.lent_memory import LentMemory
from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.plan import BlockCopy

TORCH_DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_STORED_DTYPES: Final = {
    **TORCH_DTYPES,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "int8": torch.int8,
}
CACHE_LINE_BYTES: Final = 64


class KVPool:
    """One tensor for all layers, in the physical order that the layout names.

    Raises:
        ConfigError: the memory cannot be had.
    """

    def __init__(self, layout: KVLayout, device: torch.device) -> None:
        self.layout: Final = layout
        try:
            pool = _zeros(layout, device)
        except (RuntimeError, MemoryError) as error:
            raise ConfigError(
                f"KV pool of {layout.total_bytes:,} bytes ({layout.num_blocks} blocks) "
                f"does not fit in the memory of {device}; lower num_kv_blocks or "
                "kv_cache_memory"
            ) from error
        self.memory: Final = pool
        """The pool in its physical order, ``layout.shape``, contiguous. Never moved."""
        self.lent: Final = LentMemory("KV pool", pool)
        """For whoever keeps the address: it stays right, or says so."""
        self.by_block: Final = pool.permute(layout.to_logical)
        """``[block, layer, kv, head, token, dim]``, a view."""
        check_cells(layout, self.by_block.stride())
        # One-byte floats are moved as bytes: torch indexes no others everywhere.
        plain = pool.view(torch.uint8) if pool.element_size() == 1 else pool
        self._blocks: Final = plain.permute(layout.to_logical)
        self._rows: Final = plain.view(-1, layout.block_size, layout.head_dim)
        self._tokens: Final = plain.view(-1, layout.head_dim)
        row_elements = layout.block_size * layout.head_dim
        block, layer, kv, *_ = (stride // row_elements for stride in layout.strides)
        self.row_stride: Final = block
        """Rows from one block to the next, within a layer's K or V."""
        self._layer_stride: Final = layer
        self._kv_stride: Final = kv

    @property
    def is_exact(self) -> bool:
        """Whether what is read is what was written, to the bit."""
        return True

    def gather_keys(self, layer: int, rows: torch.Tensor) -> torch.Tensor:
        """Collect rows of a layer's K.

        Args:
            layer: index of the layer.
            rows: int64 ``[n]``, counted from the layer's first.

        Returns:
            ``[n, block_size, head_dim]`` in the dtype that is computed in.
        """
        return self._gather(layer * self._layer_stride, rows)

    def gather_values(self, layer: int, rows: torch.Tensor) -> torch.Tensor:
        """Collect rows of a layer's V, as ``gather_keys``."""
        return self._gather(layer * self._layer_stride + self._kv_stride, rows)

    def write(
        self, layer: int, places: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Put the step's new K and V where the slot mapping says.

        Args:
            layer: index of the layer.
            places: int64 ``[num_kv_heads * N]``, head by head: ``(block * row_stride +
                head) * block_size + slot`` of each new token.
            keys: ``[num_kv_heads, N, head_dim]``.
            values: as ``keys``.
        """
        head_dim, block_size = self.layout.head_dim, self.layout.block_size
        start = layer * self._layer_stride * block_size
        for first, new in ((0, keys), (self._kv_stride * block_size, values)):
            tokens = self._tokens[start + first :]
            tokens.index_copy_(0, places, self._stored(new.reshape(-1, head_dim)))

    def clear_blocks(self, block_ids: torch.Tensor) -> None:
        """Zero whole blocks over all layers.

        Decode reads the unwritten slots of a sequence's last block and weighs them with
        0; what a broken request left there could be NaN, and 0 * NaN is NaN.

        Args:
            block_ids: int64 ``[n]``.
        """
        if len(block_ids):
            self._blocks.index_fill_(0, block_ids, 0)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks over all layers, in order (copy on write)."""
        for copy in copies:
            self._blocks[copy.target].copy_(self._blocks[copy.source])

    def _gather(self, first_row: int, rows: torch.Tensor) -> torch.Tensor:
        return self._rows[first_row:].index_select(0, rows)

    def _stored(self, new: torch.Tensor) -> torch.Tensor:
        """Turn computed K or V into what the pool's rows hold."""
        return new


def _zeros(layout: KVLayout, device: torch.device) -> torch.Tensor:
    """Allocate zeros, not garbage: a padded read of the null block must stay finite."""
    dtype = _STORED_DTYPES[layout.dtype]
    if device.type != "cpu":
        return torch.zeros(layout.shape, dtype=dtype, device=device)
    # numpy asks the system for zeroed pages, which cost nothing until they are written;
    # torch.zeros writes them (seen: 5.5 s for 4 GB).
    memory = np.zeros(layout.total_bytes + CACHE_LINE_BYTES, dtype=np.uint8)
    start = -memory.ctypes.data % CACHE_LINE_BYTES
    aligned = memory[start : start + layout.total_bytes]
    return torch.from_numpy(aligned).view(dtype).view(layout.shape)
