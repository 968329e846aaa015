"""The block pool: one state a block, reference counts, least recently used first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.scheduler.block_hash import BlockHash, hash_block, hash_root
from hybrid.scheduler.block_pool import BlockPool
from hybrid.scheduler.cached_contents import CachedContents

ROOT = hash_root((), None, None)


def contents_of(*token_ids: int, parent: BlockHash = ROOT) -> CachedContents:
    """The name of a block with these tokens."""
    block_hash = hash_block(parent, token_ids)
    return CachedContents(block_hash, parent, token_ids, is_first=parent == ROOT)


def test_the_null_block_is_never_handed_out() -> None:
    """Ids run from 1 to num_blocks."""
    pool = BlockPool(3)
    assert [pool.allocate() for _ in range(3)] == [1, 2, 3]
    assert pool.num_free == 0


def test_a_freed_block_is_found_until_it_is_reused() -> None:
    """An idle block is findable; once reused, its old hash leads nowhere."""
    pool = BlockPool(1)
    block_id = pool.allocate()
    assert pool.publish(block_id, contents_of(7))
    pool.free(block_id)
    assert pool.find(contents_of(7)) == block_id
    assert (pool.num_free, pool.num_cached_idle) == (1, 1)
    assert pool.allocate() == block_id
    assert pool.find(contents_of(7)) is None
    pool.check_integrity()


def test_worthless_blocks_go_before_cached_ones_and_old_before_new() -> None:
    """Reuse order: never cached first, then by last use."""
    pool = BlockPool(3)
    for token_id in (1, 2):
        pool.publish(pool.allocate(), contents_of(token_id))
    pool.free(pool.allocate())
    pool.free(1)
    pool.free(2)
    pool.share(1)
    pool.free(1)
    assert [pool.allocate() for _ in range(3)] == [3, 2, 1]


def test_a_shared_block_is_owned_until_its_last_owner_leaves() -> None:
    """Owners are counted; freeing more often than owning is our own fault."""
    pool = BlockPool(2)
    block_id = pool.allocate()
    pool.share(block_id)
    pool.free(block_id)
    assert pool.num_owned == 1
    pool.free(block_id)
    assert pool.num_owned == 0
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(block_id)


def test_equal_contents_are_findable_once() -> None:
    """The second block with equal contents stays private and is freed as worthless."""
    pool = BlockPool(2)
    first, second = pool.allocate(), pool.allocate()
    assert pool.publish(first, contents_of(7))
    assert pool.publish(second, contents_of(7))
    pool.free(second)
    assert pool.find(contents_of(7)) == first
    assert pool.num_cached_idle == 0


def test_a_hit_compares_tokens_and_parent() -> None:
    """Under a colliding hash nothing but the very same contents is found."""
    pool = BlockPool(2)
    stored = contents_of(7)
    pool.publish(pool.allocate(), stored)
    other_tokens = stored._replace(token_ids=(8,))
    other_parent = stored._replace(parent_hash=BlockHash(b"x" * 16))
    assert pool.find(other_tokens) is None
    assert pool.find(other_parent) is None
    # And the chain behind such a block is not to be published.
    assert not pool.publish(pool.allocate(), other_tokens)


def test_reset_forgets_everything_or_nothing() -> None:
    """While a block is owned nothing is forgotten."""
    pool = BlockPool(2)
    pool.publish(pool.allocate(), contents_of(1))
    assert not pool.reset_cache()
    assert pool.find(contents_of(1)) == 1
    pool.free(1)
    assert pool.reset_cache()
    assert pool.find(contents_of(1)) is None
    assert pool.num_free == 2
    pool.check_integrity()


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from("aaspff"), st.integers(0, 9)), max_size=60),
)
def test_pool_equals_a_naive_model(
    num_blocks: int, actions: list[tuple[str, int]]
) -> None:
    """Random allocate, share, publish and free against a model with plain lists."""
    pool = BlockPool(num_blocks)
    owners: list[int] = []
    holds: dict[int, int] = {}
    for action, number in actions:
        if action == "a" and pool.num_free:
            block_id = pool.allocate()
            assert block_id not in owners
            holds.pop(block_id, None)
            owners.append(block_id)
        elif action == "s" and holds:
            block_id = sorted(holds)[number % len(holds)]
            pool.share(block_id)
            owners.append(block_id)
        elif action == "p" and owners:
            block_id = owners[number % len(owners)]
            if block_id not in holds:
                pool.publish(block_id, contents_of(number))
                if number not in holds.values():
                    holds[block_id] = number
        elif action == "f" and owners:
            pool.free(owners.pop(number % len(owners)))
        pool.check_integrity()
        for token_id in range(10):
            found = pool.find(contents_of(token_id))
            assert holds.get(found or 0) == (None if found is None else token_id)
            assert (found is not None) == (token_id in holds.values())
        for block_id in range(1, num_blocks + 1):
            assert pool.ref_count(block_id) == owners.count(block_id)
        assert pool.num_owned == len(set(owners))
