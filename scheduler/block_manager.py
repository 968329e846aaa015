"""Gives sequences their blocks: prefix cache, growth, fork, copy on write.

Knows tables and tokens; no request, no budget, no policy.
"""

from collections.abc import Sequence

from .block_hash import BlockHash, hash_block, hash_root
from .block_pool import BlockPool
from .block_table import BlockTable
from .cached_contents import CachedContents
from .config import SchedulerConfig
from .plan import BlockCopy


class BlockManager:
    """Owner of the pool and of every change to a block table."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.pool = BlockPool(config.num_blocks)
        self.block_size = config.block_size
        self._cache_domain = config.cache_domain
        self._caches = config.enable_prefix_caching
        self._supports_block_copy = config.supports_block_copy
        # Without copies a fork recomputes the tokens of the partial block. An executor
        # that neither cuts prompts nor reuses prefixes cannot start in mid-sequence.
        self._starts_midway = config.enable_prefix_caching or (
            config.enable_chunked_prefill
        )
        self._copies: list[BlockCopy] = []

    def new_table(self, adapter: str | None, cache_salt: str | None) -> BlockTable:
        """An empty table whose blocks are shared within these key domains only."""
        return BlockTable(hash_root(self._cache_domain, adapter, cache_salt))

    def find_cached_prefix(
        self, table: BlockTable, token_ids: Sequence[int]
    ) -> tuple[int, ...]:
        """The longest run of cached blocks that holds a prefix of these tokens.

        Always leaves at least the last token to compute: its logits are wanted.
        """
        found: list[int] = []
        if not self._caches:
            return ()
        for index in range((len(token_ids) - 1) // self.block_size):
            block_id = self.pool.find(self._contents_of(table, token_ids, index))
            if block_id is None:
                break
            found.append(block_id)
        return tuple(found)

    def can_allocate(
        self, cached_ids: Sequence[int], num_tokens: int, num_owed_blocks: int = 0
    ) -> bool:
        """Whether a new table of ``num_tokens`` fits beside what is owned now.

        ``num_owed_blocks`` are free still and promised to others.
        """
        num_missing = self._num_blocks(num_tokens) - len(cached_ids)
        num_revived = sum(map(self.pool.is_idle, cached_ids))
        return num_missing + num_revived + num_owed_blocks <= self.pool.num_free

    def attach_cached(self, table: BlockTable, cached_ids: tuple[int, ...]) -> None:
        """Begin an empty table with blocks that ``find_cached_prefix`` returned."""
        assert not table.block_ids, "cached blocks can only begin a table"
        for block_id in cached_ids:
            self.pool.share(block_id)
        self._set_blocks(table, cached_ids)
        table.num_committed_blocks = len(cached_ids)

    def allocate(self, table: BlockTable, num_tokens: int) -> bool:
        """Make the table cover ``num_tokens`` and its tail writable by it alone.

        Returns:
            False, with nothing changed, if the pool lacks blocks.
        """
        if num_tokens <= table.num_slots and not table.shares_tail:
            return True
        copies = table.shares_tail and self.pool.ref_count(table.block_ids[-1]) > 1
        num_missing = self._num_blocks(num_tokens) - len(table.block_ids)
        if num_missing + copies > self.pool.num_free:
            return False
        block_ids = table.block_ids
        if copies:
            block_ids = (*block_ids[:-1], self._copy_block(block_ids[-1]))
        if num_missing > 0:
            new_ids = (self.pool.allocate() for _ in range(num_missing))
            block_ids = (*block_ids, *new_ids)
        table.shares_tail = False
        self._set_blocks(table, block_ids)
        return True

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """The block copies decided since the last call, in the order to be done."""
        if not self._copies:
            return ()
        copies = tuple(self._copies)
        self._copies.clear()
        return copies

    def commit(
        self, table: BlockTable, token_ids: Sequence[int], num_computed_tokens: int
    ) -> None:
        """Publish the blocks that are full and computed now, and only those."""
        num_full = num_computed_tokens // self.block_size
        if self._caches and table.is_publishable:
            for index in range(table.num_committed_blocks, num_full):
                contents = self._contents_of(table, token_ids, index)
                if not self.pool.publish(table.block_ids[index], contents):
                    table.is_publishable = False
                    break
        table.num_committed_blocks = num_full

    def fork(self, table: BlockTable, num_computed_tokens: int) -> BlockTable:
        """A second table over the same blocks, as far as they can be shared.

        All of them where the executor copies blocks: who writes the partial last one
        first gets a copy, the last owner writes in place. Else the full ones only.
        """
        num_full = num_computed_tokens // self.block_size
        is_partial = num_computed_tokens % self.block_size > 0
        num_shared = num_full + is_partial
        if is_partial and not self._supports_block_copy:
            num_shared = num_full if self._starts_midway else 0
        child = BlockTable(table.root_hash)
        child.block_hashes = list(table.block_hashes)
        child.is_publishable = table.is_publishable
        child.num_committed_blocks = min(table.num_committed_blocks, num_shared)
        self._set_blocks(child, table.block_ids[:num_shared])
        for block_id in child.block_ids:
            self.pool.share(block_id)
        if num_shared > num_full:
            child.shares_tail = table.shares_tail = True
        return child

    def free(self, table: BlockTable) -> None:
        """Give all blocks back, the tail first: a prefix's head is reused last."""
        for block_id in reversed(table.block_ids):
            self.pool.free(block_id)
        self._set_blocks(table, ())
        table.num_committed_blocks = 0
        table.shares_tail = False

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _set_blocks(self, table: BlockTable, block_ids: tuple[int, ...]) -> None:
        table.block_ids = block_ids
        table.num_slots = len(block_ids) * self.block_size

    def _copy_block(self, source: int) -> int:
        target = self.pool.allocate()
        self._copies.append(BlockCopy(source, target))
        self.pool.free(source)
        return target

    def _contents_of(
        self, table: BlockTable, token_ids: Sequence[int], index: int
    ) -> CachedContents:
        start = index * self.block_size
        block_tokens = tuple(token_ids[start : start + self.block_size])
        hashes = table.block_hashes
        parent: BlockHash = hashes[index - 1] if index else table.root_hash
        if index == len(hashes):
            hashes.append(hash_block(parent, block_tokens))
        return CachedContents(hashes[index], parent, block_tokens, index == 0)
