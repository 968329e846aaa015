"""The block manager: prefix lookup, growth, fork, copy on write, commit."""

import pytest

from hybrid.scheduler import BlockCopy, block_manager
from hybrid.scheduler.block_hash import BlockHash
from hybrid.scheduler.block_manager import BlockManager
from hybrid.scheduler.block_table import BlockTable
from tests.scheduler.factories import make_config


def make_manager(**fields: object) -> BlockManager:
    """A manager of 8 blocks of 4 tokens."""
    return BlockManager(make_config(**fields))


def computed_table(
    manager: BlockManager, token_ids: list[int], salt: str | None = None
) -> BlockTable:
    """A table whose tokens were all computed and committed."""
    table = manager.new_table(None, salt)
    assert manager.allocate(table, len(token_ids))
    manager.commit(table, token_ids, len(token_ids))
    return table


TOKENS = list(range(10))


def test_a_table_grows_by_replacement() -> None:
    """A plan that holds the old tuple never sees it change."""
    manager = make_manager()
    table = computed_table(manager, TOKENS[:4])
    before = table.block_ids
    assert manager.allocate(table, 5)
    assert before == (1,)
    assert table.block_ids == (1, 2)


def test_allocation_is_all_or_nothing() -> None:
    """Without enough blocks nothing changes."""
    manager = make_manager(num_blocks=2)
    table = manager.new_table(None, None)
    assert not manager.allocate(table, 9)
    assert table.block_ids == ()
    assert manager.pool.num_free == 2


def test_full_computed_blocks_are_found_again() -> None:
    """The partial tail is not, nor anything before it was computed."""
    manager = make_manager()
    table = manager.new_table(None, None)
    assert manager.allocate(table, 10)
    other = manager.new_table(None, None)
    assert manager.find_cached_prefix(other, [*TOKENS, 10, 11, 12]) == ()
    manager.commit(table, TOKENS, 7)
    assert manager.find_cached_prefix(other, [*TOKENS, 10, 11, 12]) == (1,)
    manager.commit(table, TOKENS, 10)
    assert manager.find_cached_prefix(other, [*TOKENS, 10, 11, 12]) == (1, 2)


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_one_token_is_left_to_compute(num_blocks: int) -> None:
    """Of a prompt of whole cached blocks the last block is computed again."""
    manager = make_manager()
    tokens = TOKENS[: 4 * num_blocks]
    computed_table(manager, tokens)
    found = manager.find_cached_prefix(manager.new_table(None, None), tokens)
    assert len(found) == num_blocks - 1


def test_salts_and_adapters_share_nothing() -> None:
    """The same tokens in another key domain are not found."""
    manager = make_manager()
    computed_table(manager, TOKENS, salt="x")
    for adapter, salt in ((None, None), (None, "y"), ("x", None)):
        table = manager.new_table(adapter, salt)
        assert manager.find_cached_prefix(table, TOKENS) == ()
    same = manager.new_table(None, "x")
    assert manager.find_cached_prefix(same, TOKENS) == (1, 2)


@pytest.mark.parametrize("field", ["model", "kv_dtype", "executor"])
@pytest.mark.parametrize("value", ["other", "", None])
def test_engines_of_another_domain_share_nothing(field: str, value: str | None) -> None:
    """Neither hashes nor, were it one pool, blocks; ``None``: the field is missing."""
    domain = {"model": "m", "kv_dtype": "float32", "executor": "pytorch"}
    changed = {
        name: text
        for name, text in (domain | {field: value}).items()
        if text is not None
    }
    one, same, other = (
        make_manager(cache_domain=tuple(fields.items()))
        for fields in (domain, domain, changed)
    )
    same.pool = other.pool = one.pool
    tokens = list(range(9))
    table = computed_table(one, tokens)
    twin, stranger = same.new_table(None, None), other.new_table(None, None)
    assert same.find_cached_prefix(twin, tokens) == table.block_ids[:2]
    assert other.find_cached_prefix(stranger, tokens) == ()
    foreign = computed_table(other, tokens)
    assert not set(table.block_hashes) & set(foreign.block_hashes)
    assert not set(table.block_ids) & set(foreign.block_ids)


def test_the_tail_is_reused_before_the_head() -> None:
    """Freed blocks of one prefix are evicted from its end."""
    manager = make_manager(num_blocks=3)
    table = computed_table(manager, [*TOKENS, 10, 11])
    manager.free(table)
    manager.allocate(manager.new_table(None, None), 4)
    probe = manager.new_table(None, None)
    assert manager.find_cached_prefix(probe, [*TOKENS, 10, 11, 12]) == (1, 2)


def test_idle_hits_count_as_used_blocks() -> None:
    """A cached-idle block that a request hits is no longer free for the rest of it."""
    manager = make_manager(num_blocks=2)
    manager.free(computed_table(manager, TOKENS[:4]))
    cached = manager.find_cached_prefix(manager.new_table(None, None), TOKENS)
    assert cached == (1,)
    assert manager.can_allocate(cached, 8)
    assert not manager.can_allocate(cached, 9)


def test_first_writer_copies_and_last_owner_writes_in_place() -> None:
    """Three tables over one partial block make two copies, in order."""
    manager = make_manager()
    tables = [computed_table(manager, TOKENS[:6])]
    tables += [manager.fork(tables[0], 6) for _ in range(2)]
    assert {table.block_ids for table in tables} == {(1, 2)}
    for table in tables:
        assert manager.allocate(table, 7)
    assert manager.take_copies() == (BlockCopy(2, 3), BlockCopy(2, 4))
    assert [table.block_ids for table in tables] == [(1, 3), (1, 4), (1, 2)]
    assert manager.take_copies() == ()


def test_a_fork_at_a_block_boundary_copies_nothing() -> None:
    """Full blocks are shared for good."""
    manager = make_manager()
    table = computed_table(manager, TOKENS[:8])
    child = manager.fork(table, 8)
    assert manager.allocate(table, 9)
    assert manager.allocate(child, 9)
    assert manager.take_copies() == ()
    assert table.block_ids[:2] == child.block_ids[:2]
    assert table.block_ids[2] != child.block_ids[2]


def test_without_block_copy_the_partial_block_is_not_shared() -> None:
    """The child gets the full blocks only."""
    manager = make_manager(supports_block_copy=False)
    child = manager.fork(computed_table(manager, TOKENS[:6]), 6)
    assert child.block_ids == (1,)
    assert not child.shares_tail


def test_an_executor_that_cannot_start_midway_shares_nothing_partial() -> None:
    """Without copy, chunks and prefix reuse a child begins at its first token."""
    manager = make_manager(
        supports_block_copy=False,
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
    )
    table = computed_table(manager, TOKENS[:8])
    assert manager.fork(table, 8).block_ids == (1, 2)
    assert manager.fork(computed_table(manager, TOKENS[:6]), 6).block_ids == ()


def test_a_collision_ends_publication_of_the_chain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If all hashes were equal, no sequence would be given another's block."""
    monkeypatch.setattr(
        block_manager, "hash_block", lambda _parent, _tokens: BlockHash(b"=" * 16)
    )
    manager = make_manager()
    computed_table(manager, TOKENS[:8])
    other = [9, 9, 9, 9, 4, 5, 6, 7]
    table = computed_table(manager, other)
    assert not table.is_publishable
    assert not manager.fork(table, 8).is_publishable
    for tokens, found in ((other, ()), (TOKENS, (1,))):
        probe = manager.new_table(None, None)
        assert manager.find_cached_prefix(probe, tokens) == found


def test_caching_can_be_off() -> None:
    """Then nothing is ever found."""
    manager = make_manager(enable_prefix_caching=False)
    computed_table(manager, TOKENS)
    probe = manager.new_table(None, None)
    assert manager.find_cached_prefix(probe, TOKENS) == ()
    assert manager.pool.num_cached_idle == 0
