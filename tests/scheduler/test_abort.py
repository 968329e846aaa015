"""Abort and stop in every state: blocks are free at once and nothing is left behind."""

import pytest

from hybrid.scheduler import SequenceKey
from tests.scheduler.driver import Driver
from tests.scheduler.factories import make_request


def num_free(driver: Driver) -> int:
    """Free blocks now."""
    return driver.scheduler.stats().num_free_blocks


@pytest.mark.parametrize("by_stop", [True, False])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("num_steps", range(8))
@pytest.mark.parametrize("in_flight", [True, False])
def test_ending_at_any_step(
    num_steps: int, n: int, *, in_flight: bool, by_stop: bool
) -> None:
    """Queued, between chunks, at the fork, decoding, with its step being computed."""
    driver = Driver(max_prefill_chunk_tokens=3)
    driver.add(make_request(prompt=10, n=n, max_tokens=6))
    for _ in range(num_steps):
        driver.step()
    plan = driver.plan() if in_flight else None
    if by_stop:
        for key in sorted(driver.live):
            driver.stop(key)
    else:
        assert driver.abort("a")
    assert num_free(driver) == 8
    if plan is not None:
        assert driver.commit(plan) == ()
    assert not driver.scheduler.has_unfinished()
    driver.check_idle()


def test_unknown_finished_and_twice() -> None:
    """None of them is an error; only the first abort of a live request says True."""
    driver = Driver()
    assert not driver.scheduler.abort("nobody")
    driver.scheduler.stop(SequenceKey("nobody", 0))
    driver.add(make_request(max_tokens=1))
    driver.run()
    assert not driver.abort("a")
    driver.add(make_request("b"))
    driver.scheduler.stop(SequenceKey("b", 7))
    assert driver.scheduler.has_unfinished()
    assert driver.abort("b")
    assert not driver.abort("b")
    driver.check_idle()


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("num_steps", range(6))
def test_an_interrupted_step_leaves_nothing_behind(
    num_steps: int, n: int, *, copies: bool
) -> None:
    """In mid-prompt, at the fork, at its copies: only what was computed is found."""
    driver = Driver(max_prefill_chunk_tokens=3, supports_block_copy=copies)
    driver.add(make_request("a", range(10), n=n, max_tokens=6))
    for _ in range(num_steps):
        driver.step()
    computed = [
        entry.num_computed_tokens
        for entry in driver.interrupt().scheduled
        if entry.sample_index == 0
    ]
    assert num_free(driver) == 8
    assert not driver.scheduler.has_unfinished()
    driver.add(make_request("b", range(10), n=n, max_tokens=6))
    driver.run()
    assert driver.cached["b"] == min(computed[0] // 4 * 4, 8)


def test_an_interrupted_step_with_copies_spares_who_was_not_in_it() -> None:
    """Its samples and their copies are gone; who still waits for a place goes on."""
    driver = Driver(num_blocks=16, max_num_seqs=4)
    driver.add(make_request("a", range(6), n=3, max_tokens=6))
    driver.step()
    driver.add(make_request("b", range(6), max_tokens=6))
    driver.add(make_request("c", range(8), max_tokens=6))
    plan = driver.interrupt()
    assert len(plan.block_copies) == 2
    assert {key.request_id for key in driver.live} == {"c"}
    driver.run()
    assert driver.cached["c"] == 4
    assert len(driver.outputs[SequenceKey("c", 0)]) == 6


def test_a_half_written_block_is_never_found() -> None:
    """After an abort in mid-chunk only whole computed blocks serve the next request."""
    driver = Driver(max_prefill_chunk_tokens=6)
    driver.add(make_request("a", range(14)))
    driver.step()
    plan = driver.plan()
    driver.abort("a")
    driver.commit(plan)
    driver.add(make_request("b", range(14), max_tokens=1))
    driver.run()
    assert driver.cached["b"] == 4


def test_a_request_with_a_cached_prefix_that_never_started() -> None:
    """While it waits it owns nothing, and its prefix stays idle for others."""
    driver = Driver(max_num_seqs=1)
    driver.add(make_request("a", range(9), max_tokens=4))
    driver.step()
    driver.add(make_request("b", range(9), max_tokens=4))
    driver.step()
    assert driver.abort("b")
    driver.run()
    assert driver.scheduler.stats().num_cached_idle_blocks == 3


def test_a_preempted_request() -> None:
    """It waits without blocks; aborting it leaves the others alone."""
    driver = Driver(num_blocks=4)
    for request_id in "ab":
        driver.add(make_request(request_id, 6, max_tokens=8))
    while not driver.plans or not driver.plans[-1].preempted:
        driver.step()
    assert driver.abort("b")
    driver.run()
    assert len(driver.outputs[SequenceKey("a", 0)]) == 8


def test_children_end_with_their_request() -> None:
    """Running and preempted samples alike."""
    driver = Driver(num_blocks=4)
    driver.add(make_request("a", 6, n=4, max_tokens=8))
    driver.add(make_request("b", 3, max_tokens=2))
    while not driver.plans or not driver.plans[-1].preempted:
        driver.step()
    assert driver.scheduler.stats().num_running > 1
    assert driver.abort("a")
    assert {key.request_id for key in driver.live} == {"b"}
    assert num_free(driver) == 4
    driver.run()


def test_the_id_of_an_aborted_request_serves_again_in_the_same_step() -> None:
    """The old sequence's tokens do not reach the new one."""
    driver = Driver()
    driver.add(make_request("a", 5, max_tokens=3))
    plan = driver.plan()
    driver.abort("a")
    driver.scheduler.add(make_request("a", 7, max_tokens=2))
    assert driver.scheduler.update(plan, [(99,)]) == ()
    plan = driver.scheduler.schedule()
    assert plan.finished == (("a", 0),)
    assert len(plan.scheduled[0].token_ids) == 7
