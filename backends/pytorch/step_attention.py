"""What every layer of one step needs to know to attend over block tables.

Built once a step from the packed batch, shared by all layers. Contexts (prefill chunks)
come first in the packed order, generations (one query token each) after.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from hybrid.bridge import (
    CSRBlockTable,
    PackedBatch,
    csr_block_table,
    pack_batch,
    slot_mapping,
)
from hybrid.scheduler.plan import StepPlan

from .decode_tiles import DecodeTile, cut_decode_tiles
from .kv_pool import KVPool


@dataclass(frozen=True, slots=True)
class ContextSpan:
    """One prefill chunk: queries ``[start:end]`` of the packed tokens."""

    start: int
    end: int
    num_computed_tokens: int
    rows: torch.Tensor
    """int64 ``[num_kv_heads * blocks]``, head by head: the pool rows of computed tokens
    and of this chunk."""


@dataclass(frozen=True, slots=True)
class TileTensors:
    """A ``DecodeTile`` on the device: S segments of W blocks, H KV heads."""

    generations: torch.Tensor
    """int64 ``[S]``."""
    rows: torch.Tensor
    """int64 ``[S * H * W]``: pool rows, so that gathering them gives ``[S, H, W *
    block_size, head_dim]``."""
    mask: torch.Tensor
    """float32 ``[S, 1, 1, W * block_size]``, additive."""


@dataclass(frozen=True, slots=True)
class DecodeTiles:
    """The generations of a step under one window."""

    tiles: tuple[TileTensors, ...]
    is_whole: bool
    """Each generation is one segment: nothing to merge."""
    order: torch.Tensor | None
    """int64 ``[R]``: where each generation stands among all segments, if whole;
    ``None`` where they stand in their own order."""


@dataclass(slots=True)
class StepAttention:
    """The step's metadata on the device, and the pool it reads and writes."""

    pool: KVPool
    places: torch.Tensor
    """int64 ``[num_kv_heads * N]``: where the new K and V go, see ``KVPool.write``."""
    begun_blocks: torch.Tensor
    """int64 ``[n]``: blocks that get their first token in this step and are not filled
    by it."""
    contexts: tuple[ContextSpan, ...]
    batch: PackedBatch
    table: CSRBlockTable
    device: torch.device
    layers_seen: list[int] = field(default_factory=list)
    """Layers that attended in this step, in order; checked when a model is loaded."""
    _decode: dict[int | None, DecodeTiles] = field(default_factory=dict)

    def decode_tiles(self, window: int | None) -> DecodeTiles:
        """The generations' tiles under a sliding window; made once per window.

        Args:
            window: tokens that a query sees, itself included; ``None``: all.
        """
        if window not in self._decode:
            self._decode[window] = self._make_tiles(window)
        return self._decode[window]

    def _make_tiles(self, window: int | None) -> DecodeTiles:
        layout = self.pool.layout
        tiles = list(
            cut_decode_tiles(
                self.batch,
                self.table,
                block_size=layout.block_size,
                cell_bytes=layout.block_bytes // (2 * layout.num_layers),
                window=window,
            )
        )
        generations = np.concatenate([tile.generations for tile in tiles])
        num_generations = len(self.batch.seq_lens) - self.batch.num_contexts
        is_whole = len(generations) == num_generations
        order = None
        if is_whole and (np.diff(generations) < 0).any():
            order = torch.from_numpy(np.argsort(generations)).to(self.device)
        return DecodeTiles(tuple(map(self._on_device, tiles)), is_whole, order)

    def _on_device(self, tile: DecodeTile) -> TileTensors:
        heads = np.arange(self.pool.layout.num_kv_heads)
        rows = tile.block_ids[:, None, :] * self.pool.row_stride + heads[None, :, None]
        return TileTensors(
            torch.from_numpy(tile.generations).to(self.device),
            torch.from_numpy(rows.reshape(-1)).to(self.device),
            torch.from_numpy(tile.mask[:, None, None]).to(self.device),
        )


def _begun_blocks(
    batch: PackedBatch, table: CSRBlockTable, block_size: int
) -> NDArray[np.int64]:
    """The last block of each sequence that gets its first, but not its last, token."""
    first_positions = batch.seq_lens - table.last_block_len
    is_begun = first_positions >= batch.num_computed_tokens
    is_begun &= table.last_block_len < block_size
    return table.indices[table.indptr[1:][is_begun] - 1].astype(np.int64)


def make_step_attention(
    plan: StepPlan, pool: KVPool, device: torch.device
) -> StepAttention:
    """Derive a step's attention metadata from its plan."""
    block_size = pool.layout.block_size
    heads = np.arange(pool.layout.num_kv_heads)[:, None]
    batch = pack_batch(plan)
    table = csr_block_table(plan.scheduled, batch.seq_lens, block_size)
    blocks, slots = np.divmod(slot_mapping(batch, table, block_size), block_size)
    places = (blocks * pool.row_stride + heads) * block_size + slots
    starts, bounds = batch.query_start_loc.tolist(), table.indptr.tolist()
    contexts = []
    for index in range(batch.num_contexts):
        block_ids = table.indices[bounds[index] : bounds[index + 1]].astype(np.int64)
        rows = (block_ids * pool.row_stride + heads).reshape(-1)
        contexts.append(
            ContextSpan(
                start=starts[index],
                end=starts[index + 1],
                num_computed_tokens=int(batch.num_computed_tokens[index]),
                rows=torch.from_numpy(rows).to(device),
            )
        )
    begun_blocks = _begun_blocks(batch, table, block_size)
    return StepAttention(
        pool=pool,
        places=torch.from_numpy(places.reshape(-1)).to(device),
        begun_blocks=torch.from_numpy(begun_blocks).to(device),
        contexts=tuple(contexts),
        batch=batch,
        table=table,
        device=device,
    )
