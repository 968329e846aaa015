"""Block tables of one step as arrays: padded rows, and compressed sparse rows (CSR)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from hybrid.scheduler.plan import ScheduledRequest

NULL_BLOCK = 0
"""Fills the unused entries of a padded table: a block that is never allocated, so that
a kernel that reads too far reads memory of the pool."""


@dataclass(frozen=True, slots=True)
class CSRBlockTable:
    """Tables end to end: that of sequence s is ``indices[indptr[s]:indptr[s + 1]]``.

    Holds exactly the blocks that cover the sequence's tokens after this step, in the
    form that FlashInfer and OpenVINO take.
    Source: FlashInfer 0.6, ``BatchDecodeWithPagedKVCacheWrapper.plan``.
    """

    indptr: NDArray[np.int32]
    """int32 ``[num_seqs + 1]``."""
    indices: NDArray[np.int32]
    """int32 ``[indptr[-1]]``: block ids."""
    last_block_len: NDArray[np.int32]
    """int32 ``[num_seqs]``: tokens in each last block, 1 to ``block_size``."""

    @property
    def num_blocks(self) -> NDArray[np.int32]:
        """int32 ``[num_seqs]``: blocks per sequence."""
        counts: NDArray[np.int32] = np.diff(self.indptr)
        return counts


def csr_block_table(
    scheduled: Sequence[ScheduledRequest],
    seq_lens: NDArray[np.int32],
    block_size: int,
) -> CSRBlockTable:
    """Lay the tables of a step end to end.

    Args:
        scheduled: the step's entries.
        seq_lens: int32 ``[num_seqs]``, tokens of each sequence after this step.
        block_size: tokens per block.

    Raises:
        ValueError: a table is too short for its sequence's tokens.
    """
    counts = -(-seq_lens // np.int32(block_size))
    for entry, count in zip(scheduled, counts.tolist(), strict=True):
        if len(entry.block_ids) < count:
            raise ValueError(
                f"block table of {entry.key} has {len(entry.block_ids)} blocks of "
                f"{block_size} tokens, its tokens need {count}"
            )
    indptr = np.zeros(len(scheduled) + 1, dtype=np.int32)
    np.cumsum(counts, out=indptr[1:])
    rows = (
        entry.block_ids if len(entry.block_ids) == count else entry.block_ids[:count]
        for entry, count in zip(scheduled, counts.tolist(), strict=True)
    )
    indices = np.fromiter(
        chain.from_iterable(rows), dtype=np.int32, count=int(indptr[-1])
    )
    last_block_len = (seq_lens - 1) % np.int32(block_size) + 1
    return CSRBlockTable(indptr, indices, last_block_len.astype(np.int32))


def padded_block_table(
    csr: CSRBlockTable, max_blocks: int | None = None
) -> NDArray[np.int32]:
    """Spread a CSR table into rows, unused entries being the null block.

    Args:
        csr: the tables.
        max_blocks: columns; ``None``: as many as the longest table has.

    Returns:
        int32 ``[num_seqs, max_blocks]``, contiguous.

    Raises:
        ValueError: a table is longer than ``max_blocks``.
    """
    counts = csr.num_blocks
    longest = int(counts.max(initial=0))
    if max_blocks is not None and longest > max_blocks:
        raise ValueError(f"a block table has {longest} blocks, max_blocks={max_blocks}")
    width = longest if max_blocks is None else max_blocks
    table = np.full((len(counts), width), NULL_BLOCK, dtype=np.int32)
    table[np.arange(width) < counts[:, None]] = csr.indices
    return table
