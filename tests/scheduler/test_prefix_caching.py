"""Prefix caching by the scheduler: what is found, what is computed, what counts."""

import pytest

from hybrid.scheduler import SequenceKey
from tests.scheduler.driver import Driver
from tests.scheduler.factories import make_request


@pytest.mark.parametrize("num_blocks", [1, 2, 3])
@pytest.mark.parametrize("max_tokens", [1, 8])
def test_a_wholly_cached_prompt_of_whole_blocks(
    num_blocks: int, max_tokens: int
) -> None:
    """Its last block is computed again, and the third call finds the same chain."""
    driver = Driver()
    prompt = range(4 * num_blocks)
    for request_id in "abc":
        driver.add(make_request(request_id, prompt, max_tokens=max_tokens))
        driver.run()
    cached = [driver.cached[request_id] for request_id in "abc"]
    assert cached == [0, 4 * num_blocks - 4, 4 * num_blocks - 4]
    outputs = [driver.outputs[SequenceKey(request_id, 0)] for request_id in "abc"]
    assert outputs[0] == outputs[1] == outputs[2]


def test_an_answer_is_found_as_the_next_prompt() -> None:
    """Blocks filled by outputs are cached, so that a chat's next turn starts there."""
    driver = Driver()
    driver.add(make_request("a", range(6), max_tokens=7))
    driver.run()
    prompt = [*range(6), *driver.outputs[SequenceKey("a", 0)], 5, 5, 5]
    driver.add(make_request("b", prompt, max_tokens=1))
    driver.run()
    assert driver.cached["b"] == 12


def test_blocks_of_the_same_step_are_not_found() -> None:
    """Two equal prompts admitted together each compute their own."""
    driver = Driver()
    for request_id in "ab":
        driver.add(make_request(request_id, range(8), max_tokens=1))
    plan, _ = driver.step()
    assert [entry.num_computed_tokens for entry in plan.scheduled] == [0, 0]
    assert not set(plan.scheduled[0].block_ids) & set(plan.scheduled[1].block_ids)
    driver.run()


def test_another_salt_or_adapter_finds_nothing() -> None:
    """Nor does a salt find what an adapter of the same name computed."""
    driver = Driver(num_blocks=16)
    for request_id, key in {
        "a": {"cache_salt": "x"},
        "b": {"adapter": "x"},
        "c": {"cache_salt": "y"},
        "d": {"adapter": "x", "cache_salt": "x"},
        "e": {},
    }.items():
        driver.add(make_request(request_id, range(9), max_tokens=1, **key))
        driver.run()
    assert set(driver.cached.values()) == {0}
    driver.add(make_request("f", range(9), max_tokens=1, cache_salt="x"))
    driver.run()
    assert driver.cached["f"] == 8


def test_caching_off_finds_and_counts_nothing() -> None:
    """Equal prompts are computed each time."""
    driver = Driver(enable_prefix_caching=False)
    for request_id in "ab":
        driver.add(make_request(request_id, range(9), max_tokens=1))
        driver.run()
    stats = driver.scheduler.stats()
    assert driver.cached == {"a": 0, "b": 0}
    assert stats.num_prefix_queried_tokens == stats.num_prefix_hit_tokens == 0
    assert stats.num_cached_idle_blocks == 0


def test_recomputation_is_no_hit() -> None:
    """Unlike prompts under preemption: hit rate 0, cached tokens 0 and stable."""
    driver = Driver(num_blocks=7, max_model_len=24)
    for request_id in "abcd":
        driver.add(make_request(request_id, 5, max_tokens=12))
    driver.run()
    stats = driver.scheduler.stats()
    assert stats.num_preemptions > 0
    assert stats.num_prefix_hit_tokens == 0
    assert stats.num_prefix_queried_tokens == 4 * 5
    assert set(driver.cached.values()) == {0}


def test_reset_forgets_only_when_nothing_is_owned() -> None:
    """With a request in flight nothing is done."""
    driver = Driver()
    driver.add(make_request("a", range(9), max_tokens=2))
    driver.step()
    assert not driver.scheduler.reset_prefix_cache()
    driver.run()
    assert driver.scheduler.stats().num_cached_idle_blocks == 2
    assert driver.scheduler.reset_prefix_cache()
    driver.add(make_request("b", range(9), max_tokens=2))
    driver.run()
    assert driver.cached["b"] == 0


def test_a_reused_block_is_no_longer_found() -> None:
    """After other traffic took the blocks, the old prompt is computed again."""
    driver = Driver(num_blocks=3)
    driver.add(make_request("a", range(9), max_tokens=1))
    driver.run()
    driver.add(make_request("b", range(50, 61), max_tokens=1))
    driver.run()
    driver.add(make_request("c", range(9), max_tokens=1))
    driver.run()
    assert driver.cached["c"] == 0
