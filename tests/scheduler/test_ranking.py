"""A policy in one function: who is served, who gives way, and what a bad one does."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.scheduler import (
    ConfigError,
    GenerateRequest,
    InvalidRequest,
    PagedScheduler,
    PluginError,
    RankFunction,
    SchedulingPolicy,
    SequenceKey,
)
from tests.scheduler.driver import Driver
from tests.scheduler.factories import make_config, make_request


def shortest_first(request: GenerateRequest) -> int:
    """The plainest policy."""
    return len(request.prompt_token_ids)


def starts(driver: Driver) -> list[str]:
    """Request ids in the order in which they were first scheduled."""
    entries = [entry for plan in driver.plans for entry in plan.scheduled]
    return list(dict.fromkeys(entry.request.request_id for entry in entries))


def test_the_lowest_rank_is_served_first_and_equals_by_order_of_adding() -> None:
    """Of those that wait at the same time."""
    driver = Driver(max_num_seqs=1, rank=shortest_first)
    for request_id, length in (("d", 7), ("b", 3), ("c", 3), ("a", 1)):
        driver.add(make_request(request_id, length, max_tokens=1))
    driver.run()
    assert starts(driver) == ["a", "b", "c", "d"]


def test_the_highest_rank_gives_way_though_it_came_first() -> None:
    """A preemption hits whom the policy ranks last."""
    driver = Driver(num_blocks=4, rank=shortest_first)
    driver.add(make_request("long", 7, max_tokens=6))
    driver.step()
    driver.add(make_request("short", 6, max_tokens=6))
    driver.run()
    assert {key for plan in driver.plans for key in plan.preempted} == {("long", 0)}


def test_samples_of_a_request_share_its_rank() -> None:
    """They are ordered by sample index behind it, and all of them end."""
    driver = Driver(num_blocks=6, rank=shortest_first)
    driver.add(make_request("long", 9, n=2, max_tokens=6))
    driver.add(make_request("short", 5, n=2, max_tokens=6))
    driver.run()
    assert starts(driver) == ["short", "long"]
    assert set(map(len, driver.outputs.values())) == {6}


@given(
    ranks=st.lists(
        st.integers()
        | st.floats(allow_nan=False)
        | st.booleans()
        | st.fractions()
        | st.lists(st.integers() | st.floats(allow_nan=False)).map(tuple)
        | st.floats(allow_nan=False, width=32).map(np.float32)
        | st.integers(-5, 5).map(np.int64),
        min_size=1,
        max_size=4,
    )
)
def test_numbers_of_every_kind_go_together(ranks: list[Any]) -> None:
    """Whatever two requests are ranked, one of them is next, and both end."""
    driver = Driver(
        num_blocks=4, rank=lambda request: ranks[int(request.request_id[1:])]
    )
    for index in range(len(ranks)):
        try:
            driver.add(make_request(f"r{index}", 3, max_tokens=8))
        except InvalidRequest:  # a fraction beyond float's range
            assert isinstance(ranks[index], Fraction)
    driver.run()


def test_a_rank_is_asked_once() -> None:
    """Preempted or forked, a sequence keeps the rank it was added with."""
    asked: list[str] = []

    def rank(request: GenerateRequest) -> float:
        asked.append(request.request_id)
        return -len(asked)

    driver = Driver(num_blocks=4, rank=rank)
    for request_id in "abc":
        driver.add(make_request(request_id, 6, n=2, max_tokens=5))
    driver.run()
    assert asked == ["a", "b", "c"]


def fail(request: GenerateRequest) -> float:
    """A policy with a bug."""
    raise KeyError(request.request_id)


def panic(request: GenerateRequest) -> float:
    """A policy over a library in another language."""

    class Panic(BaseException):
        """As such libraries raise it."""

    raise Panic(request.request_id)


BAD_RANKS = [math.nan, (1, math.nan), None, "high", (1, "x"), [1], Decimal(1), 1j, {}]


@pytest.mark.parametrize("rank", [*(lambda _, v=v: v for v in BAD_RANKS), fail, panic])
def test_a_bad_rank_refuses_its_request_alone(rank: RankFunction) -> None:
    """Nothing is queued, the neighbour runs, and the id can be used again."""

    def rank_some(request: GenerateRequest) -> float | tuple[float, ...]:
        return rank(request) if request.cache_salt == "bad" else 0

    driver = Driver(rank=rank_some)
    driver.add(make_request("good", 3, max_tokens=2))
    before = driver.scheduler.stats()
    with pytest.raises(PluginError, match="the scheduling policy"):
        driver.scheduler.add(make_request("bad", 3, cache_salt="bad"))
    assert driver.scheduler.stats() == before
    driver.add(make_request("bad", 3, max_tokens=2))
    driver.run()


def test_the_message_says_what_the_policy_raised() -> None:
    """So that its author finds the bug without the engine's source."""
    scheduler = PagedScheduler(make_config(), rank=fail)
    with pytest.raises(PluginError, match=r"KeyError\('a'\)") as caught:
        scheduler.add(make_request("a"))
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_policy_may_refuse_a_request_in_its_own_words() -> None:
    """An InvalidRequest passes through as it is."""
    refusal = InvalidRequest("tenant over quota", field="cache_salt", value="x")

    def rank(_: GenerateRequest) -> float:
        raise refusal

    with pytest.raises(InvalidRequest) as caught:
        PagedScheduler(make_config(), rank=rank).add(make_request())
    assert caught.value is refusal


def test_two_policies_at_once_are_refused() -> None:
    """Neither the option nor the function is dropped in silence."""
    config = make_config(policy=SchedulingPolicy.PRIORITY)
    with pytest.raises(ConfigError, match="policy is 'priority'"):
        PagedScheduler(config, rank=shortest_first)


def test_a_rank_that_cannot_be_called_is_refused() -> None:
    """At construction, with what was passed."""
    with pytest.raises(ConfigError, match="rank is 3"):
        PagedScheduler(make_config(), rank=3)  # type: ignore[arg-type]


def test_a_policy_of_numbers_is_the_built_in_of_the_same_numbers() -> None:
    """The option is a use of the seam: step for step the same plans."""
    plans = []
    for options in (
        {"policy": SchedulingPolicy.PRIORITY},
        {"rank": lambda request: (request.priority, request.arrival_time_s)},
    ):
        driver = Driver(num_blocks=5, **options)
        for index, request_id in enumerate("abcd"):
            driver.add(
                make_request(
                    request_id,
                    6,
                    max_tokens=6,
                    priority=-index // 2,
                    arrival_time_s=-index,
                )
            )
        driver.run()
        plans.append(
            [(p.preempted, [e.key for e in p.scheduled]) for p in driver.plans]
        )
    assert plans[0] == plans[1]
    assert any(preempted for preempted, _ in plans[0])
    assert plans[0][0][1][0] == SequenceKey("d", 0)
