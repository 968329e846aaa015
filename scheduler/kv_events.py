"""What changes in the prefix cache, for routers that send requests where it fits.

Knows contents and hashes; no block id, no pool. Events rebuild the set of findable
blocks: whoever applies all of them in order knows what a prompt would find.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from .block_hash import BlockHash
from .cached_contents import CachedContents


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Full blocks that can be found from now on, each the parent of the next."""

    block_hashes: tuple[int, ...]
    """Signed, 64 bits; see ``short_hash``."""
    parent_hash: int | None
    """Of the block before the first of them; ``None``: they begin a sequence. The
    parent may have been removed since: then they wait for it to be stored again."""
    token_ids: tuple[int, ...]
    """Of all the blocks, ``block_size`` each."""
    block_size: int
    """Tokens of one block."""


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks that can no longer be found: they were needed for other contents."""

    block_hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """No block can be found any more."""


KvEvent = BlocksStored | BlocksRemoved | CacheCleared


def short_hash(block_hash: BlockHash) -> int:
    """The first 8 bytes of a block's hash, little-endian, as a signed integer.

    Equal contents after equal contents have equal hashes, in every engine of one cache
    domain. That two of a million cached blocks meet has a chance of 3e-8.
    """
    return int.from_bytes(block_hash[:8], "little", signed=True)


class KvEventLog:
    """Collects changes until they are taken; joins neighbours into one event."""

    def __init__(self) -> None:
        self._events: list[KvEvent] = []
        # At most one of these two is not empty: the event that is still growing.
        self._stored: list[CachedContents] = []
        self._removed: list[int] = []

    def stored(self, contents: CachedContents) -> None:
        """A block can be found from now on."""
        if not self._stored or self._stored[-1].block_hash != contents.parent_hash:
            self._close_event()
        self._stored.append(contents)

    def removed(self, contents: CachedContents) -> None:
        """A block can no longer be found."""
        if self._stored:
            self._close_event()
        self._removed.append(short_hash(contents.block_hash))

    def cleared(self) -> None:
        """No block can be found any more."""
        self._close_event()
        self._events.append(CacheCleared())

    def take(self) -> tuple[KvEvent, ...]:
        """The events since the last call, in order."""
        self._close_event()
        events, self._events = tuple(self._events), []
        return events

    def _close_event(self) -> None:
        if self._stored:
            first = self._stored[0]
            self._events.append(
                BlocksStored(
                    tuple(short_hash(block.block_hash) for block in self._stored),
                    None if first.is_first else short_hash(first.parent_hash),
                    tuple(
                        chain.from_iterable(block.token_ids for block in self._stored)
                    ),
                    len(first.token_ids),
                )
            )
            self._stored = []
        elif self._removed:
            self._events.append(BlocksRemoved(tuple(self._removed)))
            self._removed = []


def describe_cache(blocks: Iterable[CachedContents]) -> tuple[KvEvent, ...]:
    """The events that lead from any state to these findable blocks, parents first."""
    by_hash = {block.block_hash: block for block in blocks}
    children: defaultdict[BlockHash | None, list[CachedContents]] = defaultdict(list)
    for block in by_hash.values():
        parent = block.parent_hash if block.parent_hash in by_hash else None
        children[parent].append(block)
    log = KvEventLog()
    log.cleared()
    pending = children[None]
    while pending:
        block = pending.pop()
        log.stored(block)
        pending.extend(children[block.block_hash])
    return log.take()
