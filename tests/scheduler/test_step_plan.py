"""Plans: the budget, their order, chunks, logits rows, and that nobody changes them."""

import dataclasses

import pytest

from hybrid.scheduler import GenerateRequest, SequenceKey
from tests.scheduler.driver import Driver
from tests.scheduler.factories import make_request, make_scheduler


def test_running_sequences_come_before_waiting_ones_within_one_budget() -> None:
    """A decode takes its token first, a prompt what is left of the budget."""
    driver = Driver(max_num_batched_tokens=6)
    driver.add(make_request("a", 5))
    driver.step()
    driver.add(make_request("b", 9))
    plan, _ = driver.step()
    shares = {
        entry.request.request_id: len(entry.token_ids) for entry in plan.scheduled
    }
    assert shares == {"a": 1, "b": 5}


def test_contexts_stand_before_generations() -> None:
    """The order of TensorRT-LLM's packed input, whoever was admitted first."""
    driver = Driver()
    driver.add(make_request("a", 5))
    driver.step()
    driver.add(make_request("b", 1))
    plan, _ = driver.step()
    assert [entry.request.request_id for entry in plan.scheduled] == ["b", "a"]
    assert plan.num_contexts == 1


@pytest.mark.parametrize("chunk", [1, 3, 4, 7, None])
def test_a_prompt_is_computed_in_chunks(chunk: int | None) -> None:
    """Only the chunk that completes the prompt wants logits and a token."""
    driver = Driver(max_prefill_chunk_tokens=chunk, max_num_batched_tokens=8)
    driver.add(make_request(prompt=13, max_tokens=2))
    driver.run()
    entries = [entry for plan in driver.plans for entry in plan.scheduled]
    prompt = [entry for entry in entries if entry.num_computed_tokens < 13]
    assert [len(entry.token_ids) for entry in prompt[:-1]] == (
        [chunk or 8] * (len(prompt) - 1)
    )
    assert sum(len(entry.token_ids) for entry in prompt) == 13
    rows = [(entry.num_logits_rows, entry.num_samples) for entry in prompt]
    assert rows == [(0, 0)] * (len(prompt) - 1) + [(1, 1)]


def test_prompt_logprobs_bound_the_rows_of_a_chunk() -> None:
    """Every prompt position has its row once; chunks keep to their own limit."""
    driver = Driver(max_prompt_logprobs_tokens=3)
    driver.add(make_request(prompt=8, prompt_logprobs=0, max_tokens=2))
    driver.run()
    rows = [entry.num_logits_rows for plan in driver.plans for entry in plan.scheduled]
    assert rows == [3, 3, 2, 1]


def test_prompt_logprobs_share_the_rows_of_a_step() -> None:
    """Eight requests at once cost no more rows than one; all get theirs in time."""
    driver = Driver(
        num_blocks=32,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_prompt_logprobs_tokens=5,
    )
    for request_id in "abcdefgh":
        driver.add(make_request(request_id, 8, max_tokens=1, prompt_logprobs=0))
    steps = driver.run()
    rows = [
        sum(entry.num_logits_rows for entry in plan.scheduled) for plan in driver.plans
    ]
    assert rows[:steps] == [5] * 12 + [4]


def test_who_waits_for_rows_stops_nobody_behind_it() -> None:
    """The rows go by rank; requests that want none are admitted past those that do."""
    driver = Driver(max_num_batched_tokens=64, max_prompt_logprobs_tokens=4)
    for request_id, logprobs in (("a", 0), ("b", 0), ("c", None)):
        driver.add(make_request(request_id, 6, max_tokens=2, prompt_logprobs=logprobs))
    shares = []
    for _ in range(3):
        plan, _ = driver.step()
        shares.append({e.request.request_id: len(e.token_ids) for e in plan.scheduled})
    assert shares == [{"a": 4, "c": 6}, {"a": 2, "b": 2, "c": 1}, {"a": 1, "b": 4}]
    driver.run()


def test_a_running_sequence_that_waits_for_rows_keeps_its_blocks() -> None:
    """It is neither served nor preempted, those behind it go on, and it comes back."""
    driver = Driver(
        num_blocks=6,
        max_num_seqs=5,
        max_prefill_chunk_tokens=2,
        max_prompt_logprobs_tokens=2,
    )
    # The samples of "a" preempt "b" after four rows, which it never wants again: so "d"
    # has all rows until "b" is there.
    driver.add(make_request("a", 4, n=4, max_tokens=2))
    driver.add(make_request("b", 10, max_tokens=1, prompt_logprobs=0))
    for _ in range(3):
        driver.step()
    assert driver.plans[-1].preempted == (SequenceKey("b", 0),)
    driver.add(make_request("d", 8, max_tokens=1, prompt_logprobs=0))
    driver.add(make_request("c", 2, max_tokens=3))
    rows: list[dict[str, int]] = []
    while driver.scheduler.has_unfinished():
        if len(rows) == 2:
            # It fits once "c" has ended: one of two free blocks is still owed to "d".
            driver.add(make_request("e", 2, max_tokens=1))
        plan, _ = driver.step()
        rows.append({e.request.request_id: e.num_logits_rows for e in plan.scheduled})
    assert rows[:2] == [{"b": 0, "d": 2, "c": 1}] * 2
    assert rows[2:4] == [{"b": 2, "c": 1}, {"b": 2, "e": 1}]
    assert rows[4:] == [{"b": 2}, {"d": 2}, {"d": 2}]
    assert driver.scheduler.stats().num_preemptions == 1


@pytest.mark.parametrize("num_prompt", [2, 9])
def test_a_whole_prompt_may_take_all_rows_of_its_step(num_prompt: int) -> None:
    """Without chunks one that exceeds the limit runs, and no other beside it."""
    driver = Driver(
        enable_chunked_prefill=False,
        max_num_batched_tokens=32,
        max_prompt_logprobs_tokens=4,
    )
    driver.add(make_request("a", num_prompt, max_tokens=1, prompt_logprobs=0))
    driver.add(make_request("b", 3, max_tokens=1, prompt_logprobs=0))
    driver.add(make_request("c", 3, max_tokens=1))
    plan, _ = driver.step()
    assert [entry.request.request_id for entry in plan.scheduled] == ["a", "c"]
    plan, _ = driver.step()
    assert [entry.request.request_id for entry in plan.scheduled] == ["b"]


def test_prompt_logprobs_are_not_answered_from_the_cache() -> None:
    """Their rows must be computed: no lookup, hence none counted."""
    driver = Driver()
    driver.add(make_request("a", (1,) * 9, max_tokens=1))
    driver.run()
    driver.add(make_request("b", (1,) * 9, max_tokens=1, prompt_logprobs=0))
    plan, _ = driver.step()
    assert plan.scheduled[0].num_computed_tokens == 0
    assert plan.scheduled[0].num_logits_rows == 9
    assert driver.scheduler.stats().num_prefix_queried_tokens == 9


def test_prompt_rows_are_reported_once_over_a_preemption() -> None:
    """A prompt computed twice reports no position twice, and pays no row for it."""
    driver = Driver(num_blocks=7, max_prompt_logprobs_tokens=2)
    driver.add(make_request("a", 8, max_tokens=9))
    driver.step()
    driver.add(make_request("b", 14, max_tokens=2, prompt_logprobs=0))
    driver.run()
    assert SequenceKey("b", 0) in {
        key for plan in driver.plans for key in plan.preempted
    }
    entries = [
        entry
        for plan in driver.plans
        for entry in plan.scheduled
        if entry.request.request_id == "b"
    ]
    starts = [entry.num_computed_tokens for entry in entries]
    again = entries[starts.index(0, 1)]
    assert again.num_logits_rows == 2
    assert len(again.token_ids) == 12 + 2


def test_requests_without_max_tokens_overlap() -> None:
    """Nothing is reserved for an answer that may become long."""
    driver = Driver(num_blocks=8)
    for request_id in "abcd":
        driver.add(make_request(request_id, 3))
    plan, _ = driver.step()
    assert len(plan.scheduled) == 4
    plan, _ = driver.step()
    assert len(plan.scheduled) == 4
    driver.run()


def test_a_short_request_does_not_overtake_the_next_in_line() -> None:
    """A large request at the head is not starved by small ones behind it."""
    driver = Driver(num_blocks=5)
    driver.add(make_request("a", 8, max_tokens=4))
    driver.step()
    driver.add(make_request("b", 16, max_tokens=1))
    driver.add(make_request("c", 1, max_tokens=1))
    plan, _ = driver.step()
    assert [entry.request.request_id for entry in plan.scheduled] == ["a"]
    driver.run()


def test_nothing_to_run_is_an_empty_plan() -> None:
    """It needs no update and takes one."""
    scheduler = make_scheduler()
    plan = scheduler.schedule()
    assert plan.scheduled == ()
    assert scheduler.update(plan, ()) == ()
    assert scheduler.schedule().step == 1
    assert scheduler.stats().num_steps == 0


def test_plans_are_immutable() -> None:
    """Neither a plan, nor an entry, nor an update can be changed."""
    scheduler = make_scheduler()
    scheduler.add(make_request())
    plan = scheduler.schedule()
    (update,) = scheduler.update(plan, [(5,)])
    for value, name in (
        (plan, "step"),
        (plan.scheduled[0], "block_ids"),
        (update, "finish_reason"),
    ):
        with pytest.raises((AttributeError, dataclasses.FrozenInstanceError)):
            setattr(value, name, None)
        hash(getattr(value, name))


def test_a_plan_is_the_same_after_its_update() -> None:
    """Later steps change none of its values."""
    driver = Driver(num_blocks=6)
    for request_id in "ab":
        driver.add(make_request(request_id, 6, n=2, max_tokens=6))
    shown = []
    while driver.scheduler.has_unfinished():
        plan = driver.plan()
        shown.append(repr(plan))
        driver.commit(plan)
    assert [repr(plan) for plan in driver.plans] == shown


def test_steps_alternate_with_updates() -> None:
    """A second plan before the update, or an update with another plan, is refused."""
    scheduler = make_scheduler()
    scheduler.add(make_request())
    plan = scheduler.schedule()
    with pytest.raises(RuntimeError, match="step 0 was planned and not updated"):
        scheduler.schedule()
    other = make_scheduler()
    other.add(make_request())
    with pytest.raises(ValueError, match="not the plan that awaits"):
        scheduler.update(other.schedule(), [(1,)])
    with pytest.raises(ValueError, match=r"wants \[1\] sampled tokens .* got \[2\]"):
        scheduler.update(plan, [(1, 2)])
    assert len(scheduler.update(plan, [(1,)])) == 1
    with pytest.raises(ValueError, match="not the plan that awaits"):
        scheduler.update(plan, [(1,)])


def test_the_request_is_shared_by_reference() -> None:
    """What a caller put in is what executors and updates see."""
    scheduler = make_scheduler()
    request: GenerateRequest = make_request()
    scheduler.add(request)
    plan = scheduler.schedule()
    assert plan.scheduled[0].request is request
    (update,) = scheduler.update(plan, [(1,)])
    assert update.request is request
