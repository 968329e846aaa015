"""One step's tables, lengths and slots on the device, in buffers that stay.

A decode step changes their contents and never their addresses, so that a captured graph
finds them where they were.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from hybrid.bridge import PackedBatch
from hybrid.bridge.flashinfer_tables import BlockTables
from hybrid.scheduler.plan import StepPlan

from .attention import AttentionNeeds
from .pinned_array import host_allocator


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
    """The current step as the kernels read it.

    Host arrays are written anew by each ``update`` while the device may still copy from
    them; that is sound because every step ends with its logits on the host.
    """

    def __init__(self, needs: AttentionNeeds, device: torch.device) -> None:
        allocate = host_allocator(device)
        self._device: Final = device
        self._tables: Final = BlockTables(
            block_size=needs.block_size,
            max_num_seqs=needs.max_num_seqs,
            max_num_blocks=-(-needs.max_model_len // needs.block_size),
            allocate=allocate,
        )
        self._host_tables: Final = torch.from_numpy(self._tables.array)
        self._device_tables: Final = self._host_tables.to(device, copy=True)
        # Rows: tokens of each sequence; starts of the contexts' queries, of their KV.
        self._lengths: Final = allocate((3, needs.max_num_seqs + 1))
        self._host_lengths: Final = torch.from_numpy(self._lengths)
        self._device_lengths: Final = self._host_lengths.to(device, copy=True)
        self._decode_slots: Final = torch.zeros(
            needs.max_num_seqs, dtype=torch.int64, device=device
        )
        self.slots = self._decode_slots[:0]
        """int64 ``[N]``: where each token's K and V go."""
        self.contexts: Contexts | None = None
        """``None``: there are none in this step."""
        self.generations: Generations | None = None

    def update(self, plan: StepPlan, batch: PackedBatch) -> None:
        """Bring a step to the device.

        Raises:
            ConfigError: it is larger than the buffers.
        """
        written = self._tables.update(plan.scheduled)
        if written:
            # One copy, of what lies between as well: cheaper than many small ones.
            rows = slice(written[0], written[-1] + 1)
            self._device_tables[rows].copy_(self._host_tables[rows], non_blocking=True)
        self._send_lengths(batch)
        slots = torch.from_numpy(self._tables.slot_mapping(batch))
        if batch.num_contexts:
            self.slots = slots.to(self._device)
        else:
            self.slots = self._decode_slots[: len(slots)].copy_(slots)
        self.contexts = self._contexts(batch) if batch.num_contexts else None
        has_generations = batch.num_contexts < len(batch.seq_lens)
        self.generations = self._generations(batch) if has_generations else None

    def _send_lengths(self, batch: PackedBatch) -> None:
        num_contexts = batch.num_contexts
        kv_lens, query_starts, kv_starts = self._lengths
        kv_lens[: len(batch.seq_lens)] = batch.seq_lens
        query_starts[: num_contexts + 1] = batch.query_start_loc[: num_contexts + 1]
        np.cumsum(batch.seq_lens[:num_contexts], out=kv_starts[1 : num_contexts + 1])
        self._device_lengths.copy_(self._host_lengths, non_blocking=True)

    def _contexts(self, batch: PackedBatch) -> Contexts:
        count = batch.num_contexts
        kv_lens, query_starts, kv_starts = self._device_lengths
        return Contexts(
            num_tokens=batch.num_context_tokens,
            tables=self._device_tables[:count],
            kv_lens=kv_lens[:count],
            query_starts=query_starts[: count + 1],
            kv_starts=kv_starts[: count + 1],
            max_query_len=int(batch.query_lens[:count].max()),
            max_kv_len=int(batch.seq_lens[:count].max()),
        )

    def _generations(self, batch: PackedBatch) -> Generations:
        rows = slice(batch.num_contexts, len(batch.seq_lens))
        return Generations(
            tables=self._device_tables[rows],
            kv_lens=self._device_lengths[0, rows],
            max_kv_len=int(batch.seq_lens[rows].max()),
        )
