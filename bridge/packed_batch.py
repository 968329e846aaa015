"""One step as packed arrays: every token of every sequence, end to end, no padding.

Pure functions over a plan; no tensor library. Example, a chunk of three tokens of a
sequence with four computed ones, beside a decode at position 9 (block size 4):

    input_ids        7  8  9 | 5
    positions        4  5  6 | 9
    query_start_loc  0         3  4
    seq_lens         7         10
    slot_mapping     b1*4+0 b1*4+1 b1*4+2 | c2*4+1
"""

from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from hybrid.scheduler.plan import StepPlan

from .block_table import CSRBlockTable


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Shapes: N tokens of the step, S sequences, R rows whose logits are wanted."""

    input_ids: NDArray[np.int64]
    """int64 ``[N]``."""
    positions: NDArray[np.int64]
    """int64 ``[N]``: place of each token in its own sequence."""
    query_start_loc: NDArray[np.int32]
    """int32 ``[S + 1]``: tokens of sequence s are ``[query_start_loc[s]:[s+1]]``."""
    num_computed_tokens: NDArray[np.int32]
    """int32 ``[S]``: tokens whose K and V are in the pool before this step."""
    seq_lens: NDArray[np.int32]
    """int32 ``[S]``: the same after this step."""
    logits_rows: NDArray[np.int64]
    """int64 ``[R]``: indices into N, in the plan's order."""
    num_contexts: int
    """The first ``num_contexts`` sequences are contexts, the rest generations."""

    @property
    def query_lens(self) -> NDArray[np.int32]:
        """int32 ``[S]``: tokens of each sequence in this step."""
        lens: NDArray[np.int32] = np.diff(self.query_start_loc)
        return lens

    @property
    def num_context_tokens(self) -> int:
        """Tokens of the contexts: the packed arrays' first part."""
        return int(self.query_start_loc[self.num_contexts])


def _ranges(starts: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    """Concatenate ``arange(start, start + length)``: int64 ``[sum(lengths)]``."""
    if lengths.size and lengths.min() == 1 == lengths.max():
        return starts.astype(np.int64)  # decode: most steps are nothing else
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    shift = starts.astype(np.int64) - (ends - lengths)
    ranges: NDArray[np.int64] = np.arange(total) + np.repeat(shift, lengths)
    return ranges


def pack_batch(plan: StepPlan) -> PackedBatch:
    """Lay a plan's tokens end to end, contexts first."""
    scheduled = plan.scheduled
    num_seqs = len(scheduled)
    query_lens = np.fromiter((len(e.token_ids) for e in scheduled), np.int32, num_seqs)
    computed = np.fromiter(
        (e.num_computed_tokens for e in scheduled), np.int32, num_seqs
    )
    num_rows = np.fromiter((e.num_logits_rows for e in scheduled), np.int32, num_seqs)
    query_start_loc = np.zeros(num_seqs + 1, dtype=np.int32)
    np.cumsum(query_lens, out=query_start_loc[1:])
    return PackedBatch(
        input_ids=np.fromiter(
            chain.from_iterable(e.token_ids for e in scheduled),
            dtype=np.int64,
            count=int(query_start_loc[-1]),
        ),
        positions=_ranges(computed, query_lens),
        query_start_loc=query_start_loc,
        num_computed_tokens=computed,
        seq_lens=computed + query_lens,
        logits_rows=_ranges(query_start_loc[1:] - num_rows, num_rows),
        num_contexts=plan.num_contexts,
    )


def slot_mapping(
    batch: PackedBatch, table: CSRBlockTable, block_size: int
) -> NDArray[np.int64]:
    """Where the K and V of each token of the step are written.

    Returns:
        int64 ``[N]``: ``block_id * block_size + offset in the block``.
    """
    first_entry = np.repeat(table.indptr[:-1].astype(np.int64), batch.query_lens)
    block_index, offset = np.divmod(batch.positions, block_size)
    block_ids = table.indices[first_entry + block_index].astype(np.int64)
    slots: NDArray[np.int64] = block_ids * block_size + offset
    return slots
