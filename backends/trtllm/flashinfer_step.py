"""One step's tables, lengths and slots on the device, in buffers that stay.

A decode step changes their contents and never their addresses, so that a captured graph
finds them where they were.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from hybrid.bridge import PackedBatch
from hybrid.bridge.flashinfer_tables import BlockTables
from hybrid.scheduler.plan import StepPlan

from .attention import AttentionNeeds
from .sent_array import SentArray, host_allocator


@dataclass(frozen=True, slots=True)
class Contexts:
    """The prefill chunks of a step, C of them; all tensors int32."""

    num_tokens: int
    """They are the first of the packed tokens."""
    tables: torch.Tensor
    """``[C, max_blocks]``."""
    kv_lens: torch.Tensor
    """``[C]``: tokens of each sequence after this step."""
    query_starts: torch.Tensor
    """``[C + 1]``: this step's tokens, summed up."""
    kv_starts: torch.Tensor
    """``[C + 1]``: ``kv_lens`` summed up."""
    max_query_len: int
    max_kv_len: int


@dataclass(frozen=True, slots=True)
class Generations:
    """The generations of a step, G of them, one token each; all tensors int32."""

    tables: torch.Tensor
    """``[G, max_blocks]``."""
    kv_lens: torch.Tensor
    """``[G]``."""
    max_kv_len: int


class DeviceStep:
    """The current step as the kernels read it."""

    def __init__(self, needs: AttentionNeeds, device: torch.device) -> None:
        self._tables: Final = BlockTables(
            block_size=needs.block_size,
            max_num_seqs=needs.max_num_seqs,
            max_num_blocks=-(-needs.max_model_len // needs.block_size),
            allocate=host_allocator(device),
        )
        self._sent_tables: Final = SentArray(self._tables.array, device)
        # Rows: tokens of each sequence; starts of the contexts' queries, of their KV.
        self._lengths: Final = SentArray.zeros(
            (3, needs.max_num_seqs + 1), torch.int32, device
        )
        # Of decode steps, where a graph finds them, and of any other.
        self._decode_slots: Final = SentArray.zeros(
            (1, needs.max_num_seqs), torch.int64, device
        )
        self._slots = SentArray.zeros((1, needs.max_num_seqs), torch.int64, device)
        self.slots = self._decode_slots.device[0, :0]
        """int64 ``[N]``: where each token's K and V go."""
        self.contexts: Contexts | None = None
        """``None``: there are none in this step."""
        self.generations: Generations | None = None

    def update(self, plan: StepPlan, batch: PackedBatch) -> None:
        """Bring a step to the device.

        Raises:
            ConfigError: it is larger than the buffers.
        """
        self._sent_tables.rewrite(lambda: self._tables.update(plan.scheduled))
        slots = self._tables.slot_mapping(batch)
        if batch.num_contexts:
            self._slots = self._slots.at_least(len(slots))
        sent = self._slots if batch.num_contexts else self._decode_slots
        (self.slots,) = sent.put(slots)
        kv_lens, *starts = self._lengths.put(batch.seq_lens, *_starts(batch))
        self.contexts = self.generations = None
        if batch.num_contexts:
            self.contexts = self._contexts(batch, kv_lens, starts)
        if batch.num_contexts < len(batch.seq_lens):
            self.generations = self._generations(batch, kv_lens)

    def _contexts(
        self, batch: PackedBatch, kv_lens: torch.Tensor, starts: list[torch.Tensor]
    ) -> Contexts:
        count = batch.num_contexts
        query_starts, kv_starts = starts
        return Contexts(
            num_tokens=batch.num_context_tokens,
            tables=self._sent_tables.device[:count],
            kv_lens=kv_lens[:count],
            query_starts=query_starts,
            kv_starts=kv_starts,
            max_query_len=int(batch.query_lens[:count].max()),
            max_kv_len=int(batch.seq_lens[:count].max()),
        )

    def _generations(self, batch: PackedBatch, kv_lens: torch.Tensor) -> Generations:
        rows = slice(batch.num_contexts, len(batch.seq_lens))
        return Generations(
            tables=self._sent_tables.device[rows],
            kv_lens=kv_lens[rows],
            max_kv_len=int(batch.seq_lens[rows].max()),
        )


def _starts(batch: PackedBatch) -> tuple[NDArray[np.integer], ...]:
    """Sums of the contexts' queries and of their KV, from 0; none without contexts."""
    count = batch.num_contexts
    if not count:
        return ()
    kv_starts = np.concatenate(([0], np.cumsum(batch.seq_lens[:count])))
    return batch.query_start_loc[: count + 1], kv_starts
