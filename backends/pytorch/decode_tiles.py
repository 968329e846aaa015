"""How the generations of a step are cut for attention, so that scratch stays bounded.

A generation's blocks are cut into segments; segments of about equal length share a
tile (here at most 4 blocks a segment, 8 a tile):

    blocks of a: 1 2 3 4 5   b: 6   c: 7 8
    tile 0: a[1 2 3 4]  c[7 8 . .]        tile 1: a[5]  b[6]

A tile gathers its K as one dense array, padded (``.``) with the null block to its
longest segment. No context has to fit, and short ones do not pay for long neighbours.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybrid.bridge import NULL_BLOCK, CSRBlockTable, PackedBatch

MAX_TILE_BYTES: Final = 4 << 20
"""K (and V) bytes that decode attention gathers at any time: a few MiB fit the cores'
caches, and do not grow with the context."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DecodeTile:
    """S segments of at most W blocks."""

    generations: Ints
    """int64 ``[S]``: which generation each segment belongs to."""
    block_ids: Ints
    """int64 ``[S, W]``, padded with the null block."""
    mask: NDArray[np.float32]
    """float32 ``[S, W * block_size]``, additive: -inf at slots that hold no token of
    the generation, or one outside its window."""


@dataclass(frozen=True, slots=True)
class _Segments:
    """All segments of a step, longest first."""

    generations: Ints
    firsts: Ints
    """Index of the first block in the generation's own table."""
    counts: Ints


def cut_decode_tiles(
    batch: PackedBatch,
    table: CSRBlockTable,
    *,
    block_size: int,
    cell_bytes: int,
    window: int | None,
) -> Iterator[DecodeTile]:
    """Cut the generations of a step into tiles.

    Args:
        batch: the step.
        table: its block tables.
        block_size: tokens per block.
        cell_bytes: bytes of K of one block in one layer.
        window: tokens that a query sees, itself included; ``None``: all.
    """
    first_seq = batch.num_contexts
    lens = batch.seq_lens[first_seq:].astype(np.int64)
    starts = table.indptr[first_seq:-1].astype(np.int64)
    begins = np.zeros_like(lens) if window is None else np.maximum(lens - window, 0)
    max_blocks = max(1, MAX_TILE_BYTES // cell_bytes)
    segments = _cut_segments(lens, begins // block_size, block_size, max_blocks)
    at = 0
    while at < len(segments.counts):
        width = int(segments.counts[at])
        taken = slice(at, at + max(1, max_blocks // width))
        generations = segments.generations[taken]
        columns = np.arange(width)
        entries = segments.firsts[taken, None] + columns
        is_block = columns < segments.counts[taken, None]
        places = np.where(is_block, starts[generations, None] + entries, 0)
        block_ids = np.where(is_block, table.indices[places], NULL_BLOCK)
        positions = entries[:, :, None] * block_size + np.arange(block_size)
        ends = lens[generations, None, None]
        hidden = (positions >= ends) | (positions < begins[generations, None, None])
        hidden |= ~is_block[:, :, None]
        mask = np.where(hidden, np.float32("-inf"), np.float32(0))
        yield DecodeTile(
            generations, block_ids.astype(np.int64), mask.reshape(len(generations), -1)
        )
        at = taken.stop


def _cut_segments(
    lens: Ints, first_blocks: Ints, block_size: int, max_blocks: int
) -> _Segments:
    """Cut each generation's visible blocks into runs of at most ``max_blocks``."""
    num_blocks = -(-lens // block_size) - first_blocks
    num_segments = -(-num_blocks // max_blocks)
    generations = np.repeat(np.arange(len(lens)), num_segments)
    before = np.cumsum(num_segments) - num_segments
    offsets = (np.arange(len(generations)) - before[generations]) * max_blocks
    counts = np.minimum(num_blocks[generations] - offsets, max_blocks)
    # Stable: generations of equal length keep their order.
    order = np.argsort(-counts, kind="stable")
    firsts = first_blocks[generations] + offsets
    return _Segments(generations[order], firsts[order], counts[order])
