"""Preemption by recompute, and who goes first under each policy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.scheduler import SchedulingPolicy, SequenceKey
from tests.scheduler.driver import Driver
from tests.scheduler.factories import make_request


def starts(driver: Driver) -> list[str]:
    """Request ids in the order in which they were first scheduled."""
    order: dict[str, None] = {}
    for plan in driver.plans:
        for entry in plan.scheduled:
            order[entry.request.request_id] = None
    return list(order)


def test_the_latest_arrival_gives_way() -> None:
    """It is reported once, queued in front, and computed again from its start."""
    driver = Driver(num_blocks=4, max_num_seqs=2)
    for request_id in "abc":
        driver.add(make_request(request_id, 6, max_tokens=5))
    while not driver.plans or not driver.plans[-1].preempted:
        driver.step()
    assert driver.plans[-1].preempted == (SequenceKey("b", 0),)
    driver.run()
    assert starts(driver) == ["a", "b", "c"]
    again = [
        entry
        for plan in driver.plans
        for entry in plan.scheduled
        if entry.request.request_id == "b" and len(entry.token_ids) > 1
    ]
    assert len(again) == 2
    assert len(again[1].token_ids) + again[1].num_computed_tokens > 6


def test_a_preempted_sequence_finds_its_own_blocks() -> None:
    """What is still cached of it is not computed twice."""
    driver = Driver(num_blocks=5)
    for request_id in "ab":
        driver.add(make_request(request_id, 8, max_tokens=5))
    driver.run()
    entries = [
        entry
        for plan in driver.plans
        for entry in plan.scheduled
        if entry.request.request_id == "b"
    ]
    assert driver.scheduler.stats().num_preemptions == 1
    assert [entry.num_computed_tokens for entry in entries[:2]] == [0, 8]
    assert driver.cached["b"] == 0


def test_the_lowest_priority_gives_way() -> None:
    """Even if it came first."""
    driver = Driver(num_blocks=4, policy=SchedulingPolicy.PRIORITY)
    driver.add(make_request("low", 6, max_tokens=6, priority=5))
    driver.step()
    driver.add(make_request("high", 6, max_tokens=6, priority=1))
    driver.run()
    assert {key for plan in driver.plans for key in plan.preempted} == {("low", 0)}


def test_waiting_order_under_priority() -> None:
    """By priority, then by arrival, then by the order of adding."""
    driver = Driver(max_num_seqs=1, policy=SchedulingPolicy.PRIORITY)
    for request_id, priority, arrival_time_s in (
        ("e", 2, 0.0),
        ("c", 1, 2.0),
        ("d", 1, 2.0),
        ("b", 1, 1.0),
        ("a", -1, 9.0),
    ):
        driver.add(
            make_request(
                request_id,
                2,
                max_tokens=1,
                priority=priority,
                arrival_time_s=arrival_time_s,
            )
        )
    driver.run()
    assert starts(driver) == list("abcde")


def test_fcfs_ignores_priority() -> None:
    """The order of adding alone counts."""
    driver = Driver(max_num_seqs=1)
    for priority, request_id in enumerate("abc"):
        driver.add(make_request(request_id, 2, max_tokens=1, priority=-priority))
    driver.run()
    assert starts(driver) == list("abc")


@pytest.mark.parametrize("policy", SchedulingPolicy)
@pytest.mark.parametrize("budget", [1, 2, 5, 64])
def test_half_computed_prompts_never_block_each_other(
    budget: int, policy: SchedulingPolicy
) -> None:
    """Many long prompts in chunks over a pool for one of them: all end."""
    driver = Driver(
        num_blocks=6,
        max_num_batched_tokens=budget,
        max_prefill_chunk_tokens=3,
        policy=policy,
    )
    for index, request_id in enumerate("abcdef"):
        driver.add(
            make_request(
                request_id, 18 - index, n=1 + index % 2, max_tokens=5, priority=-index
            )
        )
    driver.run()
    assert all(len(tokens) == 5 for tokens in driver.outputs.values())


def test_prompts_in_chunks_wait_for_what_admitted_ones_still_need() -> None:
    """Blocks promised to a half-computed prompt are not free: nothing runs twice."""
    driver = Driver(num_blocks=30, max_model_len=128, max_prefill_chunk_tokens=4)
    for request_id in "abcd":
        driver.add(make_request(request_id, 100, max_tokens=4))
    driver.run()
    stats = driver.scheduler.stats()
    assert stats.num_preemptions == 0
    assert stats.num_scheduled_tokens == 4 * 103


@given(
    prompts=st.lists(st.tuples(st.integers(1, 23), st.booleans()), max_size=6),
    num_blocks=st.integers(6, 14),
    chunk=st.integers(1, 6),
    num_rows=st.integers(1, 6),
    policy=st.sampled_from(SchedulingPolicy),
)
def test_prompts_alone_never_preempt(
    prompts: list[tuple[int, bool]],
    num_blocks: int,
    chunk: int,
    num_rows: int,
    policy: SchedulingPolicy,
) -> None:
    """Only answers outgrow the pool; a prompt that waits for rows keeps its promise."""
    driver = Driver(
        num_blocks=num_blocks,
        max_prefill_chunk_tokens=chunk,
        max_prompt_logprobs_tokens=num_rows,
        policy=policy,
    )
    for index, (num_prompt, wants_rows) in enumerate(prompts):
        driver.add(
            make_request(
                chr(ord("a") + index),
                num_prompt,
                max_tokens=1,
                prompt_logprobs=0 if wants_rows else None,
                priority=-index,
            )
        )
        driver.step()
    driver.run()
    assert driver.scheduler.stats().num_preemptions == 0


def test_a_pool_of_one_block() -> None:
    """One token a block, one block: requests of a single token run one by one."""
    driver = Driver(block_size=1, num_blocks=1, max_model_len=2)
    for request_id in "abc":
        driver.add(make_request(request_id, 1))
    assert driver.run() == 3
