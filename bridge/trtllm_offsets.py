"""Block tables as TensorRT-LLM's block offsets, kept from step to step.

``offsets[pool, row, field, i]`` (field 0: K, 1: V) counts cells from the pool's pointer
to the cell of the i-th block of a sequence. A decode step changes nothing but the rows
whose tables grew, so the array is made once and only what changed is written.

Source: TensorRT-LLM 1.2, ``batch_manager/kvCacheManager.cpp`` (``setOffsets``) and
``kernels/kvCacheIndex.h``.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.plan import ScheduledRequest

from .trtllm_pools import INT31, TrtllmPools

SECONDARY_BIT: Final = np.int32(-(2**31))
"""Bit 31 of an offset: the block lies in the secondary pool, in host memory."""

HostAllocator = Callable[[tuple[int, ...]], NDArray[np.int32]]
"""Makes a zeroed int32 array in host memory; pinned where a device will read it."""


def zeros_on_host(shape: tuple[int, ...]) -> NDArray[np.int32]:
    """Pageable memory: what there is without a device."""
    return np.zeros(shape, dtype=np.int32)


class BlockOffsets:
    """int32 ``[pools, max_seqs, 2, max_blocks]`` in host memory, never moved.

    Unused entries are 0, the null block. Two pools of one layer-first layout have equal
    rows; both are written, for a kernel reads them by plain indexing.

    Raises:
        ConfigError: the array would have more entries than a kernel counts.
    """

    def __init__(
        self,
        pools: TrtllmPools,
        *,
        max_num_seqs: int,
        max_num_blocks: int,
        allocate: HostAllocator = zeros_on_host,
    ) -> None:
        kernel_pools = pools.kernel_pools
        shape = (len(kernel_pools), max_num_seqs, 2, max_num_blocks)
        num_entries = max_num_seqs * 2 * max_num_blocks
        if num_entries > INT31:
            raise ConfigError(
                f"block offsets: {max_num_seqs} sequences of {max_num_blocks} blocks "
                f"make {num_entries:,} entries a pool, must be at most {INT31:,}"
            )
        self.array: Final = allocate(shape)
        self._block_size: Final = pools.layouts[0].block_size
        # One table serves all pools.
        self._num_blocks: Final = min(one.num_blocks for one in pools.layouts)
        self._steps = np.array([p.cells_per_block for p in kernel_pools], np.int32)
        self._to_value = np.array([p.cells_to_value for p in kernel_pools], np.int32)
        # What each row holds, to tell what changed.
        self._tables: list[tuple[int, ...]] = [()] * max_num_seqs

    def update(
        self,
        scheduled: Sequence[ScheduledRequest],
        secondary: Collection[int] = frozenset(),
    ) -> list[int]:
        """Make row i hold the table of entry i.

        Args:
            scheduled: the step's entries, contexts first.
            secondary: ids of blocks that lie in the secondary pool now.

        Returns:
            Rows that were written; the device's copy of all others is still right.

        Raises:
            ConfigError: more sequences or blocks than the array holds, a block that is
                in no pool, or a prompt's
                chunk that is not its last and ends within a block.
        """
        for entry in scheduled:
            self._check_chunk(entry)
        if len(scheduled) > len(self._tables):
            raise ConfigError(
                f"block offsets: {len(scheduled)} sequences, must be at most "
                f"{len(self._tables)}"
            )
        return [
            row
            for row, entry in enumerate(scheduled)
            if self._write_row(row, entry.block_ids, secondary)
        ]

    def _check_chunk(self, entry: ScheduledRequest) -> None:
        # Source: TensorRT-LLM 1.2, docs/source/advanced/gpt-attention.md.
        end = entry.num_computed_tokens + len(entry.token_ids)
        if not entry.num_samples and end % self._block_size:
            raise ConfigError(
                f"block offsets: a chunk of {entry.key} ends at token {end}; one that "
                f"is not the last must end at a multiple of block_size "
                f"{self._block_size}"
            )

    def _write_row(
        self, row: int, table: tuple[int, ...], secondary: Collection[int]
    ) -> bool:
        before = self._tables[row]
        if table is before and not secondary:
            return False
        if len(table) > self.array.shape[3]:
            raise ConfigError(
                f"block offsets: a table of {len(table)} blocks, must be at most "
                f"{self.array.shape[3]}"
            )
        kept = 0 if secondary else _common_length(before, table)
        if kept == len(table) == len(before):
            self._tables[row] = table
            return False
        ids = np.array(table[kept:], dtype=np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < self._num_blocks:
            raise ConfigError(
                f"block offsets: a table has ids from {ids.min()} to {ids.max()}, must "
                f"be from 0 to {self._num_blocks - 1}"
            )
        keys = self._steps[:, None] * ids.astype(np.int32)
        values = keys + self._to_value[:, None]
        if secondary:
            bits = np.array([SECONDARY_BIT if i in secondary else 0 for i in ids])
            keys, values = keys | bits, values | bits
        cells = self.array[:, row]
        cells[:, 0, kept : len(table)] = keys
        cells[:, 1, kept : len(table)] = values
        cells[:, :, len(table) : len(before)] = 0
        # With moved blocks nothing of this row can be trusted in the next step.
        self._tables[row] = table if not secondary else (-1,) * len(table)
        return True


def _common_length(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    """How many leading entries are equal; tables of one sequence only grow."""
    length = min(len(before), len(after))
    if before[:length] == after[:length]:
        return length
    pairs = zip(before, after, strict=False)
    return next(index for index, (one, other) in enumerate(pairs) if one != other)
