"""Chunks that end at block boundaries: where they are cut, who waits, and how long."""

import pytest

from hybrid.scheduler import ConfigError
from tests.scheduler.driver import Driver
from tests.scheduler.factories import make_request, make_scheduler


def shares_of(driver: Driver) -> dict[str, int]:
    """Run a step: the tokens of each request in it."""
    plan, _ = driver.step()
    shares: dict[str, int] = {}
    for entry in plan.scheduled:
        name = entry.request.request_id
        shares[name] = shares.get(name, 0) + len(entry.token_ids)
    return shares


@pytest.mark.parametrize(
    ("limit", "chunks"),
    [
        ({"max_num_batched_tokens": 7}, [4, 4, 7]),
        ({"max_prefill_chunk_tokens": 7}, [4, 4, 7]),
        ({"max_prompt_logprobs_tokens": 7}, [4, 4, 7]),
        ({"max_prefill_chunk_tokens": 4}, [4, 4, 4, 3]),
    ],
)
def test_every_chunk_but_the_last_ends_at_a_block_boundary(
    limit: dict[str, int], chunks: list[int]
) -> None:
    """Whatever limits it; the last ends where the prompt does."""
    driver = Driver(align_chunks=True, **limit)
    driver.add(make_request("a", 15, prompt_logprobs=0, max_tokens=1))
    steps = driver.run()
    assert [plan.num_scheduled_tokens for plan in driver.plans[:steps]] == chunks


def test_a_running_prompt_without_room_for_a_block_holds_up_nobody() -> None:
    """It keeps its blocks, those behind it go on, and it goes on with the first end."""
    driver = Driver(
        align_chunks=True, num_blocks=20, max_num_seqs=6, max_num_batched_tokens=6
    )
    driver.add(make_request("a", 1, n=2, max_tokens=4))
    driver.add(make_request("b", 1, max_tokens=9))
    driver.add(make_request("p", 16, max_tokens=1))
    driver.add(make_request("q", 2, max_tokens=3))
    assert shares_of(driver) == {"a": 1, "b": 1, "p": 4}
    assert shares_of(driver) == {"a": 2, "b": 1, "q": 2}
    assert shares_of(driver) == {"a": 2, "b": 1, "q": 1}
    assert shares_of(driver) == {"a": 2, "b": 1, "q": 1}
    assert shares_of(driver) == {"b": 1, "p": 4}
    driver.run()
    assert driver.scheduler.stats().num_preemptions == 0


def test_a_waiting_prompt_is_not_starved_by_short_ones_behind_it() -> None:
    """They would fit beside the running ones, one after the other, for ever."""
    driver = Driver(align_chunks=True, num_blocks=20, max_num_batched_tokens=6)
    driver.add(make_request("a", 1, n=3, max_tokens=3))
    shares_of(driver)
    driver.add(make_request("p", 9, max_tokens=1))
    for index in range(4):
        driver.add(make_request(f"q{index}", 1, max_tokens=8))
    assert shares_of(driver) == {"a": 3}
    assert shares_of(driver) == {"a": 3}
    assert shares_of(driver) == {"p": 4, "q0": 1, "q1": 1}
    assert shares_of(driver) == {"p": 5, "q0": 1}
    driver.run()


def test_what_is_computed_again_is_cut_at_block_boundaries_too() -> None:
    """A preempted sequence comes back with its answer so far, cut like a prompt."""
    driver = Driver(
        align_chunks=True,
        num_blocks=7,
        max_num_batched_tokens=9,
        max_model_len=26,
        enable_prefix_caching=False,
    )
    for request_id in ("a", "b"):
        driver.add(make_request(request_id, 4, max_tokens=20))
    driver.run()
    assert driver.scheduler.stats().num_preemptions == 1
    again = [
        entry
        for plan in driver.plans
        for entry in plan.scheduled[: plan.num_contexts]
        if entry.num_computed_tokens + len(entry.token_ids) > 4
    ]
    ends = [entry.num_computed_tokens + len(entry.token_ids) for entry in again]
    assert len(again) > 1
    assert all(end % 4 == 0 for end in ends[:-1])


def test_who_lacks_rows_for_a_block_waits_alone() -> None:
    """One row that is left serves no chunk; those who want no rows go on."""
    driver = Driver(align_chunks=True, num_blocks=16, max_prompt_logprobs_tokens=5)
    for request_id, logprobs in (("a", 0), ("b", 0), ("c", None)):
        driver.add(make_request(request_id, 6, max_tokens=1, prompt_logprobs=logprobs))
    assert shares_of(driver) == {"a": 4, "c": 6}
    assert shares_of(driver) == {"a": 2}
    assert shares_of(driver) == {"b": 4}
    assert shares_of(driver) == {"b": 2}


@pytest.mark.parametrize(
    "name",
    [
        "max_num_batched_tokens",
        "max_prefill_chunk_tokens",
        "max_prompt_logprobs_tokens",
    ],
)
def test_no_limit_may_be_less_than_a_block(name: str) -> None:
    """No prompt longer than that would ever advance; where none is cut, all do."""
    with pytest.raises(ConfigError, match=f"{name} is 3, must be at least block_size="):
        make_scheduler(align_chunks=True, **{name: 3})
    make_scheduler(align_chunks=True, **{name: 4})
    whole = {"enable_chunked_prefill": False, "max_num_batched_tokens": 24}
    if name == "max_prompt_logprobs_tokens":
        make_scheduler(align_chunks=True, **whole, **{name: 3})
