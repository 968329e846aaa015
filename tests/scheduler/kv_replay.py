"""Applies KV events as a router would, and holds them against the pool."""

from collections.abc import Iterable

from hybrid.scheduler import PagedScheduler
from hybrid.scheduler.kv_events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    KvEvent,
    short_hash,
)

Block = tuple[int | None, tuple[int, ...]]
"""Parent's hash and tokens."""


class KvReplay:
    """The findable blocks of a scheduler, known from its events alone."""

    def __init__(self, scheduler: PagedScheduler) -> None:
        self.scheduler = scheduler
        self.blocks = apply_events({}, scheduler.start_kv_events())

    def update(self) -> None:
        """Take what was recorded since; the result must be what the pool holds."""
        apply_events(self.blocks, self.scheduler.take_kv_events())
        assert self.blocks == findable_blocks(self.scheduler)


def apply_events(
    blocks: dict[int, Block], events: Iterable[KvEvent]
) -> dict[int, Block]:
    """Apply events in order to these blocks; each must fit what came before it."""
    for event in events:
        match event:
            case BlocksStored():
                _store(blocks, event)
            case BlocksRemoved(block_hashes):
                for block_hash in block_hashes:
                    del blocks[block_hash]
            case CacheCleared():
                blocks.clear()
    return blocks


def _store(blocks: dict[int, Block], event: BlocksStored) -> None:
    size, parent = event.block_size, event.parent_hash
    assert len(event.token_ids) == size * len(event.block_hashes)
    for index, block_hash in enumerate(event.block_hashes):
        assert block_hash not in blocks, "stored twice"
        assert -(2**63) <= block_hash < 2**63
        blocks[block_hash] = (
            parent,
            event.token_ids[index * size : (index + 1) * size],
        )
        parent = block_hash


def findable_blocks(scheduler: PagedScheduler) -> dict[int, Block]:
    """What the pool itself says can be found."""
    pool = scheduler._manager.pool
    return {
        short_hash(block.block_hash): (
            None if block.is_first else short_hash(block.parent_hash),
            block.token_ids,
        )
        for block in pool._contents.values()
    }
