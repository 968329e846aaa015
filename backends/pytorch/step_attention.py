"""What every layer of one step needs to know to attend over block tables.

Built once a step from the packed batch, shared by all layers. Contexts (prefill chunks)
come first in the packed order, generations (one query token each) after.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch

from hybrid.bridge import (
    CSRBlockTable,
    PackedBatch,
    csr_block_table,
    pack_batch,
    slot_mapping,
)
from hybrid.scheduler.plan import StepPlan

from .kv_pool import KVPool

MAX_TILE_BYTES: Final = 2 << 20
"""K (and V) bytes that decode attention has gathered at any time: a few MiB fit the
cores' caches, and the scratch does not grow with the context."""


@dataclass(frozen=True, slots=True)
class ContextSpan:
    """One prefill chunk: queries ``[start:end]`` of the packed tokens."""

    start: int
    end: int
    num_computed_tokens: int
    block_ids: torch.Tensor
    """int64 ``[num_blocks]``: covers computed tokens and this chunk."""


@dataclass(frozen=True, slots=True)
class DecodeTile:
    """Some (sequence, block) pairs of the generations, consecutive in table order."""

    rows: torch.Tensor
    """int64 ``[P]``: which generation each pair belongs to, ascending."""
    block_ids: torch.Tensor
    """int64 ``[P]``."""
    mask: torch.Tensor | None
    """Additive, float32 ``[P, 1, 1, block_size]``: -inf at slots that hold no token of
    the sequence or one outside its window; ``None`` if there is no such slot."""


@dataclass(slots=True)
class StepAttention:
    """The step's metadata on the device, and the pool it reads and writes."""

    pool: KVPool
    slot_blocks: torch.Tensor
    """int64 ``[N]``: block that takes each new token's K and V."""
    slot_offsets: torch.Tensor
    """int64 ``[N]``: slot within that block."""
    num_context_tokens: int
    contexts: tuple[ContextSpan, ...]
    batch: PackedBatch
    table: CSRBlockTable
    device: torch.device
    layers_seen: list[int] = field(default_factory=list)
    """Layers that attended in this step, in order; the executor checks them."""
    _tiles: dict[int | None, tuple[DecodeTile, ...]] = field(default_factory=dict)

    def decode_tiles(self, window: int | None) -> tuple[DecodeTile, ...]:
        """The generations' pairs under a sliding window; made once per window and step.

        Args:
            window: tokens that a query sees, itself included; ``None``: all.
        """
        if window not in self._tiles:
            self._tiles[window] = tuple(self._make_tiles(window))
        return self._tiles[window]

    def _make_tiles(self, window: int | None) -> list[DecodeTile]:
        block_size = self.pool.layout.block_size
        batch, table = self.batch, self.table
        first_seq = batch.num_contexts
        lens = batch.seq_lens[first_seq:].astype(np.int64)
        counts = table.num_blocks[first_seq:].astype(np.int64)
        rows = np.repeat(np.arange(len(lens)), counts)
        block_ids = table.indices[table.indptr[first_seq] :].astype(np.int64)
        # Position of each pair's first slot in its own sequence.
        firsts = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        firsts *= block_size
        begins = np.zeros_like(lens) if window is None else np.maximum(lens - window, 0)
        keep = firsts + block_size > begins[rows]
        rows, block_ids, firsts = rows[keep], block_ids[keep], firsts[keep]
        positions = firsts[:, None] + np.arange(block_size)
        hidden = (positions >= lens[rows, None]) | (positions < begins[rows, None])
        pairs_per_tile = self._pairs_per_tile()
        return [
            DecodeTile(
                rows=self._tensor(rows[at : at + pairs_per_tile]),
                block_ids=self._tensor(block_ids[at : at + pairs_per_tile]),
                mask=self._mask(hidden[at : at + pairs_per_tile]),
            )
            for at in range(0, len(rows), pairs_per_tile)
        ]

    def _pairs_per_tile(self) -> int:
        layout = self.pool.layout
        cell_bytes = layout.block_bytes // (2 * layout.num_layers)
        return max(1, MAX_TILE_BYTES // cell_bytes)

    def _tensor(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def _mask(self, hidden: Any) -> torch.Tensor | None:
        if not hidden.any():
            return None
        mask = np.where(hidden, np.float32("-inf"), np.float32(0))
        return self._tensor(mask[:, None, None, :])


def make_step_attention(
    plan: StepPlan, pool: KVPool, device: torch.device
) -> StepAttention:
    """Derive a step's attention metadata from its plan."""
    block_size = pool.layout.block_size
    batch = pack_batch(plan)
    table = csr_block_table(plan.scheduled, batch.seq_lens, block_size)
    slot_blocks, slot_offsets = np.divmod(
        slot_mapping(batch, table, block_size), block_size
    )
    block_ids = torch.from_numpy(table.indices.astype(np.int64)).to(device)
    starts = batch.query_start_loc.tolist()
    blocks = table.indptr.tolist()
    contexts = tuple(
        ContextSpan(
            start=starts[index],
            end=starts[index + 1],
            num_computed_tokens=int(batch.num_computed_tokens[index]),
            block_ids=block_ids[blocks[index] : blocks[index + 1]],
        )
        for index in range(batch.num_contexts)
    )
    return StepAttention(
        pool=pool,
        slot_blocks=torch.from_numpy(slot_blocks).to(device),
        slot_offsets=torch.from_numpy(slot_offsets).to(device),
        num_context_tokens=batch.num_context_tokens,
        contexts=contexts,
        batch=batch,
        table=table,
        device=device,
    )
