"""The blocks of one KV pool: who owns how many, which can be found again.

Knows ids, reference counts and contents' names; no request, no memory.

Every block is in exactly one of three states::

    free         no owner, contents worthless         reused first
    cached-idle  no owner, contents findable by hash  reused in order of last use
    owned        ref_count >= 1, findable or not      never reused
"""

from collections import OrderedDict

from .block_hash import BlockHash, hash_block
from .cached_contents import CachedContents
from .kv_events import KvEvent, KvEventLog, describe_cache


class BlockPool:
    """Blocks 1 to ``num_blocks``. Block 0 is the null block and never handed out."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # A stack with the lowest id on top: small tables in an idle engine.
        self._free = list(range(num_blocks, 0, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._ref_counts = [0] * (num_blocks + 1)
        self._contents: dict[int, CachedContents] = {}
        self._by_hash: dict[BlockHash, int] = {}
        self.events: KvEventLog | None = None
        """Every change of what can be found, while somebody wants to know."""

    @property
    def num_free(self) -> int:
        """Blocks without an owner, cached-idle ones included."""
        return len(self._free) + len(self._idle)

    @property
    def num_cached_idle(self) -> int:
        """Blocks without an owner that can still be found."""
        return len(self._idle)

    @property
    def num_owned(self) -> int:
        """Blocks with an owner, shared ones counted once."""
        return self.num_blocks - self.num_free

    def ref_count(self, block_id: int) -> int:
        """How many sequences own this block."""
        return self._ref_counts[block_id]

    def is_idle(self, block_id: int) -> bool:
        """Whether the block is cached and without an owner."""
        return block_id in self._idle

    def allocate(self) -> int:
        """Hand out a block with one owner; what it held can no longer be found.

        The caller has made sure that ``num_free`` is not 0.
        """
        if self._free:
            block_id = self._free.pop()
        else:
            block_id, _ = self._idle.popitem(last=False)
            self._forget(block_id)
        self._ref_counts[block_id] = 1
        return block_id

    def share(self, block_id: int) -> None:
        """Add an owner to an owned or cached-idle block."""
        if self._ref_counts[block_id] == 0:
            del self._idle[block_id]
        self._ref_counts[block_id] += 1

    def free(self, block_id: int) -> None:
        """Take one owner away; without owners a findable block becomes cached-idle."""
        assert self._ref_counts[block_id] > 0, f"block {block_id} freed twice"
        self._ref_counts[block_id] -= 1
        if self._ref_counts[block_id] == 0:
            if block_id in self._contents:
                self._idle[block_id] = None
            else:
                self._free.append(block_id)

    def publish(self, block_id: int, contents: CachedContents) -> bool:
        """Make a full, computed, owned block findable.

        Of two blocks with equal contents only the first is findable: tables never
        change behind a plan, so that the second stays its owner's private copy.

        Returns:
            False if the hash names *other* contents (a collision): then nothing that
            continues this block may be published: it would be found after the other.
        """
        assert self._ref_counts[block_id] > 0, f"block {block_id} has no owner"
        assert block_id not in self._contents, f"block {block_id} published twice"
        known = self._by_hash.get(contents.block_hash)
        if known is not None:
            return self._contents[known] == contents
        self._contents[block_id] = contents
        self._by_hash[contents.block_hash] = block_id
        if self.events is not None:
            self.events.stored(contents)
        return True

    def find(self, contents: CachedContents) -> int | None:
        """The block with these contents: hash, parent and tokens all compared."""
        block_id = self._by_hash.get(contents.block_hash)
        if block_id is None or self._contents[block_id] != contents:
            return None
        return block_id

    def contents(self, block_id: int) -> CachedContents | None:
        """What a findable block holds; ``None`` if it cannot be found."""
        return self._contents.get(block_id)

    def reset_cache(self) -> bool:
        """Forget all contents; ``False``, and nothing done, while a block is owned."""
        if self.num_owned:
            return False
        self._free.extend(reversed(self._idle))
        self._idle.clear()
        self._contents.clear()
        self._by_hash.clear()
        if self.events is not None:
            self.events.cleared()
        return True

    def start_events(self) -> tuple[KvEvent, ...]:
        """Record every change of what can be found from now on.

        Returns:
            The events that lead from any state to the present one; what was recorded
            before is among them.
        """
        self.events = KvEventLog()
        return describe_cache(self._contents.values())

    def check_integrity(self) -> None:
        """Assert that the three states partition the pool and that the map is true."""
        free, idle = set(self._free), set(self._idle)
        owned = {i for i, count in enumerate(self._ref_counts) if count > 0}
        assert len(free) == len(self._free), "a block is free twice"
        assert len(free) + len(idle) + len(owned) == self.num_blocks, "blocks are lost"
        assert free | idle | owned == set(range(1, self.num_blocks + 1)), "wrong ids"
        assert all(count >= 0 for count in self._ref_counts), "negative ref_count"
        assert not free & self._contents.keys(), "a free block can be found"
        assert idle <= self._contents.keys(), "an idle block cannot be found"
        assert len(self._by_hash) == len(self._contents), "hash map out of step"
        for block_id, contents in self._contents.items():
            block_hash = hash_block(contents.parent_hash, contents.token_ids)
            assert block_hash == contents.block_hash, "hash of other contents"
            assert self._by_hash[block_hash] == block_id, "hash names another block"

    def _forget(self, block_id: int) -> None:
        contents = self._contents.pop(block_id)
        del self._by_hash[contents.block_hash]
        if self.events is not None:
            self.events.removed(contents)
