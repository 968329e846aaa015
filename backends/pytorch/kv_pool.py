"""The paged KV pool in torch: allocated once, written by slot, copied by block."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from hybrid.bridge import KVLayout
from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.plan import BlockCopy

TORCH_DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
CACHE_LINE_BYTES: Final = 64


class KVPool:
    """One tensor for all layers, in the physical order that the layout names.

    Both orders keep a (block, layer, K or V) cell contiguous, ``[num_kv_heads,
    block_size, head_dim]``: one head's tokens of one block are one dense matrix.

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
        self._by_block: Final = pool.permute(layout.to_logical)
        """``[block, layer, kv, head, token, dim]``, a view."""

    def key_cache(self, layer: int) -> torch.Tensor:
        """K of a layer, a view ``[num_blocks, num_kv_heads, block_size, head_dim]``."""
        return self._by_block[:, layer, 0]

    def value_cache(self, layer: int) -> torch.Tensor:
        """V of one layer, as ``key_cache``."""
        return self._by_block[:, layer, 1]

    def write(
        self,
        layer: int,
        block_ids: torch.Tensor,
        offsets: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        """Put the step's new K and V where the slot mapping says.

        Args:
            layer: index of the layer.
            block_ids: int64 ``[N]``.
            offsets: int64 ``[N]``, slot within the block.
            keys: ``[num_kv_heads, N, head_dim]``.
            values: as ``keys``.
        """
        # Indexing around the head axis puts the token axis first: [N, heads, dim].
        self.key_cache(layer)[block_ids, :, offsets] = keys.transpose(0, 1)
        self.value_cache(layer)[block_ids, :, offsets] = values.transpose(0, 1)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks over all layers, in order (copy on write)."""
        for copy in copies:
            self._by_block[copy.target].copy_(self._by_block[copy.source])


def _zeros(layout: KVLayout, device: torch.device) -> torch.Tensor:
    """Allocate zeros, not garbage: a padded read of the null block must stay finite."""
    dtype = TORCH_DTYPES[layout.dtype]
    if device.type != "cpu":
        return torch.zeros(layout.shape, dtype=dtype, device=device)
    # numpy asks the system for zeroed pages, which cost nothing until they are written;
    # torch.zeros writes them (seen: 5.5 s for 4 GB).
    memory = np.zeros(layout.total_bytes + CACHE_LINE_BYTES, dtype=np.uint8)
    start = -memory.ctypes.data % CACHE_LINE_BYTES
    aligned = memory[start : start + layout.total_bytes]
    return torch.from_numpy(aligned).view(dtype).view(layout.shape)
