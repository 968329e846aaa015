"""Which changes of the prefix cache are told, in which order, and to whom not."""

import pytest

from hybrid.scheduler import Scheduler, UnsupportedFeature
from hybrid.scheduler.block_hash import hash_block, hash_root
from hybrid.scheduler.kv_events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    short_hash,
)
from tests.scheduler.driver import Driver
from tests.scheduler.factories import make_request, make_scheduler
from tests.scheduler.kv_replay import KvReplay

PROMPT = range(1, 10)
"""Two blocks of four and a rest."""


def hashes_of(*blocks: tuple[int, ...]) -> list[int]:
    """The short hashes of a chain of blocks, hashed by hand."""
    parent = hash_root((), None, None)
    hashes = []
    for tokens in blocks:
        parent = hash_block(parent, tokens)
        hashes.append(int.from_bytes(parent[:8], "little", signed=True))
    return hashes


def run(driver: Driver, request_id: str, prompt: range, **fields: object) -> None:
    """Run one request of one token to its end."""
    driver.add(make_request(request_id, prompt, max_tokens=1, **fields))
    driver.run()


def test_the_full_blocks_of_a_prompt_are_stored_as_one_chain() -> None:
    """Parents first, with their tokens; what is not full is not told."""
    driver = Driver()
    assert driver.scheduler.start_kv_events() == (CacheCleared(),)
    run(driver, "a", PROMPT)
    first, second = hashes_of((1, 2, 3, 4), (5, 6, 7, 8))
    stored = BlocksStored((first, second), None, (1, 2, 3, 4, 5, 6, 7, 8), 4)
    assert driver.scheduler.take_kv_events() == (stored,)
    assert driver.scheduler.take_kv_events() == ()


def test_a_longer_prompt_names_the_parent_that_is_known_already() -> None:
    """Only the new block is told, after the cached ones that it continues."""
    driver = Driver()
    driver.scheduler.start_kv_events()
    run(driver, "a", PROMPT)
    driver.scheduler.take_kv_events()
    run(driver, "b", range(1, 14))
    _, parent, last = hashes_of((1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 11, 12))
    stored = BlocksStored((last,), parent, (9, 10, 11, 12), 4)
    assert driver.scheduler.take_kv_events() == (stored,)


def test_a_salt_changes_the_hashes() -> None:
    """Blocks that one caller must not find are other blocks."""
    driver = Driver()
    driver.scheduler.start_kv_events()
    run(driver, "a", PROMPT, cache_salt="mine")
    run(driver, "b", PROMPT)
    salted, plain = driver.scheduler.take_kv_events()
    assert isinstance(salted, BlocksStored)
    assert isinstance(plain, BlocksStored)
    assert salted.token_ids == plain.token_ids
    assert not set(salted.block_hashes) & set(plain.block_hashes)


def test_what_is_evicted_is_removed_before_its_place_is_stored_anew() -> None:
    """The tail of the least recently used chain goes first."""
    driver = Driver(num_blocks=3)
    driver.scheduler.start_kv_events()
    run(driver, "a", PROMPT)
    driver.scheduler.take_kv_events()
    run(driver, "b", range(21, 30))
    removed, stored = driver.scheduler.take_kv_events()
    first, second = hashes_of((1, 2, 3, 4), (5, 6, 7, 8))
    assert removed == BlocksRemoved((second, first))
    assert isinstance(stored, BlocksStored)
    assert stored.token_ids == tuple(range(21, 29))


def test_a_reset_is_told_and_a_refused_one_is_not() -> None:
    """Nothing is cleared while a block is owned."""
    driver = Driver()
    driver.scheduler.start_kv_events()
    driver.add(make_request("a", PROMPT, max_tokens=3))
    driver.step()
    driver.scheduler.take_kv_events()
    assert not driver.scheduler.reset_prefix_cache()
    assert driver.scheduler.take_kv_events() == ()
    driver.run()
    assert driver.scheduler.reset_prefix_cache()
    assert driver.scheduler.take_kv_events()[-1] == CacheCleared()


def test_who_comes_late_is_told_what_there_is() -> None:
    """One chain of blocks an event, parents first, after a clean start."""
    driver = Driver(num_blocks=16)
    run(driver, "a", PROMPT)
    run(driver, "b", range(1, 14))
    run(driver, "c", range(50, 55))
    cleared, *stored = driver.scheduler.start_kv_events()
    assert cleared == CacheCleared()
    lengths = {len(event.block_hashes) for event in stored}
    assert lengths == {1, 3}
    KvReplay(driver.scheduler).update()


def test_a_child_may_be_findable_while_its_parent_is_not() -> None:
    """Its parent's findable copy was another sequence's: the child waits, not first."""
    driver = Driver(num_blocks=8)
    replay = KvReplay(driver.scheduler)
    # Both compute the same block in one step: only the first one's can be found.
    driver.add(make_request("a", range(1, 6), max_tokens=1))
    driver.add(make_request("b", range(1, 6), max_tokens=12))
    driver.step()
    # Fills the pool but for b's own blocks, so that a's idle one is evicted.
    driver.add(make_request("c", range(101, 117), max_tokens=3))
    driver.run(max_steps=100)
    replay.update()
    (first,) = hashes_of((1, 2, 3, 4))
    parents = [parent for parent, _ in replay.blocks.values()]
    assert first not in replay.blocks
    assert first in parents
    late = KvReplay(driver.scheduler)
    assert late.blocks == replay.blocks


def test_nothing_is_recorded_unless_somebody_asked() -> None:
    """Neither before the start nor after the stop."""
    driver = Driver()
    run(driver, "a", PROMPT)
    assert driver.scheduler.take_kv_events() == ()
    driver.scheduler.start_kv_events()
    driver.scheduler.stop_kv_events()
    run(driver, "b", range(50, 60))
    assert driver.scheduler.take_kv_events() == ()


def test_a_start_includes_what_was_recorded_and_not_taken() -> None:
    """Started twice: nothing is told twice, and nothing is lost."""
    driver = Driver()
    driver.scheduler.start_kv_events()
    run(driver, "a", PROMPT)
    replay = KvReplay(driver.scheduler)
    assert len(replay.blocks) == 2
    assert driver.scheduler.take_kv_events() == ()


def test_a_scheduler_need_not_tell() -> None:
    """Another scheduler says by name that it cannot, and has nothing to take."""

    class Other(type(make_scheduler())):
        """One that kept the interface's own answers."""

        start_kv_events = Scheduler.start_kv_events
        stop_kv_events = Scheduler.stop_kv_events
        take_kv_events = Scheduler.take_kv_events

    other = Other(make_scheduler()._config)
    with pytest.raises(UnsupportedFeature, match="Other reports no KV events"):
        other.start_kv_events()
    other.stop_kv_events()
    assert other.take_kv_events() == ()


def test_short_hashes_fill_the_signed_range() -> None:
    """Both signs occur: nothing is cut off but the second half."""
    hashes = [short_hash(hash_block(hash_root((), None, None), (i,))) for i in range(9)]
    assert min(hashes) < 0 < max(hashes)
    assert len(set(hashes)) == 9
