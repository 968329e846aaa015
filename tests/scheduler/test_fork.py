"""Requests with n samples: one prompt, shared blocks, separate ways."""

import pytest

from hybrid.scheduler import BlockCopy, FinishReason, SequenceKey
from tests.scheduler.driver import Driver
from tests.scheduler.factories import EOS, make_request


def test_the_prompt_is_computed_once_and_yields_n_tokens() -> None:
    """One entry wants n draws; one update per sample follows."""
    driver = Driver()
    driver.add(make_request(prompt=6, n=3, max_tokens=3))
    plan, updates = driver.step()
    assert [entry.num_samples for entry in plan.scheduled] == [3]
    assert [update.sample_index for update in updates] == [0, 1, 2]
    assert driver.scheduler.stats().num_running == 3
    driver.run()
    assert [len(tokens) for tokens in driver.outputs.values()] == [3, 3, 3]


def test_the_partial_block_is_copied_for_all_but_one() -> None:
    """First writers copy, the last owner writes in place; full blocks stay shared."""
    driver = Driver()
    driver.add(make_request(prompt=6, n=3, max_tokens=3))
    driver.step()
    assert driver.scheduler.stats().num_allocated_slots == 8
    plan, _ = driver.step()
    assert plan.block_copies == (BlockCopy(2, 3), BlockCopy(2, 4))
    assert [entry.block_ids for entry in plan.scheduled] == [(1, 3), (1, 4), (1, 2)]
    driver.run()


def test_one_sample_left_writes_in_place() -> None:
    """When the others are gone before the first write there is nothing to copy."""
    driver = Driver()
    driver.add(make_request(prompt=6, n=2, max_tokens=3))
    driver.step()
    driver.stop(SequenceKey("a", 0))
    plan, _ = driver.step()
    assert plan.block_copies == ()
    assert plan.scheduled[0].block_ids == (1, 2)
    driver.run()


def test_without_block_copy_children_compute_the_tail_themselves() -> None:
    """No copies; full blocks are shared; the tail is a small context."""
    driver = Driver(supports_block_copy=False)
    driver.add(make_request(prompt=6, n=3, max_tokens=3))
    driver.step()
    plan, _ = driver.step()
    assert plan.block_copies == ()
    computed = [entry.num_computed_tokens for entry in plan.scheduled]
    assert sorted(computed) == [4, 4, 6]
    assert plan.num_contexts == 2
    assert {entry.block_ids[0] for entry in plan.scheduled} == {1}
    driver.run()


def test_places_are_kept_for_all_samples_from_the_start() -> None:
    """While the shared prompt is computed its n places are taken."""
    driver = Driver(max_num_seqs=4, max_num_batched_tokens=4)
    driver.add(make_request("a", 6, n=3, max_tokens=2))
    driver.add(make_request("b", 1, n=2, max_tokens=2))
    driver.step()
    plan, _ = driver.step()
    assert {entry.request.request_id for entry in plan.scheduled} == {"a"}
    driver.run()


def test_samples_that_end_with_their_first_token_need_no_blocks() -> None:
    """Some end in the step of the fork, the others go on."""
    driver = Driver(lambda key, index: EOS if key.sample_index % 2 else 5 + index)
    driver.add(make_request(prompt=6, n=4, max_tokens=3))
    _, updates = driver.step()
    assert [update.finish_reason for update in updates] == [
        None,
        FinishReason.STOP,
        None,
        FinishReason.STOP,
    ]
    driver.run()
    assert driver.reasons[SequenceKey("a", 0)] is FinishReason.LENGTH


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("num_blocks", [4, 5, 6, 8])
def test_samples_are_preempted_and_come_back_one_by_one(
    num_blocks: int, *, copies: bool
) -> None:
    """In a pool for hardly more than one sequence all samples still end in full."""
    driver = Driver(num_blocks=num_blocks, supports_block_copy=copies)
    driver.add(make_request(prompt=6, n=4, max_tokens=10))
    driver.run()
    assert [len(tokens) for tokens in driver.outputs.values()] == [10] * 4
    preempted = {key for plan in driver.plans for key in plan.preempted}
    assert SequenceKey("a", 0) not in preempted
    assert preempted
    assert set(driver.cached.values()) == {0}


def test_one_sample_can_be_stopped_alone() -> None:
    """The others go on; its blocks are free at once."""
    driver = Driver()
    driver.add(make_request(prompt=4, n=2, max_tokens=6))
    for _ in range(3):
        driver.step()
    free = driver.scheduler.stats().num_free_blocks
    driver.stop(SequenceKey("a", 1))
    assert driver.scheduler.stats().num_free_blocks == free + 1
    driver.run()
    assert len(driver.outputs[SequenceKey("a", 0)]) == 6
