"""Admission: what can never run is refused with numbers, and nothing is queued."""

import math
from typing import Any

import pytest

from hybrid.scheduler import (
    DuplicateRequest,
    FinishReason,
    GenerateRequest,
    InvalidRequest,
    OutOfBlocks,
    RequestTooLong,
    SchedulingPolicy,
    SequenceKey,
)
from tests.scheduler.driver import Driver
from tests.scheduler.factories import make_request, make_scheduler


def refuse(
    kind: type[InvalidRequest], request: GenerateRequest, **config: Any
) -> InvalidRequest:
    """The error with which a fresh scheduler refuses the request."""
    scheduler = make_scheduler(**config)
    with pytest.raises(kind) as caught:
        scheduler.add(request)
    assert not scheduler.has_unfinished()
    assert type(caught.value) is kind
    return caught.value


def test_an_empty_prompt_is_refused() -> None:
    """There is nothing to continue."""
    error = refuse(InvalidRequest, make_request(prompt=()))
    assert error.field == "prompt_token_ids"


@pytest.mark.parametrize("token_id", [-1, 2**31])
def test_ids_that_no_executor_takes_are_refused(token_id: int) -> None:
    """Ids are int32 and not negative."""
    error = refuse(InvalidRequest, make_request(prompt=(1, token_id, 2)))
    assert error.value == token_id


@pytest.mark.parametrize("num_prompt", [24, 25, 48])
def test_a_prompt_that_fills_the_context_is_refused(num_prompt: int) -> None:
    """At, just over and at twice the limit; never cut in silence."""
    error = refuse(RequestTooLong, make_request(prompt=num_prompt, max_tokens=1))
    assert isinstance(error, RequestTooLong)
    assert (error.num_tokens, error.limit) == (num_prompt, 23)
    assert str(num_prompt) in str(error)
    assert "max_model_len=24" in str(error)


@pytest.mark.parametrize("max_tokens", [1, 5, None])
def test_a_prompt_one_short_of_the_context_yields_one_token(
    max_tokens: int | None,
) -> None:
    """The answer ends with "length" at the context's limit, clamped, not refused."""
    driver = Driver()
    driver.add(make_request(prompt=23, max_tokens=max_tokens))
    driver.run()
    key = SequenceKey("a", 0)
    assert len(driver.outputs[key]) == 1
    assert driver.reasons[key] is FinishReason.LENGTH


def test_a_prompt_beyond_the_pool_is_refused() -> None:
    """An explicit error, never an empty answer called a success."""
    error = refuse(OutOfBlocks, make_request(prompt=9), num_blocks=2)
    assert isinstance(error, OutOfBlocks)
    assert (error.num_blocks, error.limit) == (3, 2)
    assert error.field == "prompt_token_ids"


def test_an_answer_beyond_the_pool_is_refused_when_asked_for() -> None:
    """max_tokens that the pool can never hold is an error with the numbers."""
    error = refuse(OutOfBlocks, make_request(prompt=5, max_tokens=5), num_blocks=2)
    assert isinstance(error, OutOfBlocks)
    assert (error.num_blocks, error.limit) == (3, 2)
    assert error.field == "max_tokens"
    assert "max_tokens=5" in str(error)


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "num_outputs"),
    [(5, 4, 4), (8, 1, 1), (5, None, 4), (8, None, 1)],
)
def test_the_pool_serves_to_its_last_slot(
    num_prompt: int, max_tokens: int | None, num_outputs: int
) -> None:
    """The last token needs no slot; without max_tokens the pool ends the answer."""
    driver = Driver(num_blocks=2)
    driver.add(make_request(prompt=num_prompt, max_tokens=max_tokens))
    driver.run()
    key = SequenceKey("a", 0)
    assert len(driver.outputs[key]) == num_outputs
    assert driver.reasons[key] is FinishReason.LENGTH


def test_more_samples_than_places_are_refused() -> None:
    """All samples of a request run at once."""
    error = refuse(InvalidRequest, make_request(n=5))
    assert error.field == "n"
    assert "max_num_seqs=4" in str(error)


@pytest.mark.parametrize("policy", SchedulingPolicy)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("priority", value) for value in ("high", None, 1.5, True, math.nan)),
        *(("arrival_time_s", value) for value in (math.nan, math.inf, 10**400)),
        *(("arrival_time_s", value) for value in ("now", None, True, 1j)),
        *(("cache_salt", value) for value in (5, b"salt", ("a",))),
        *(("adapter", value) for value in (5, b"adapter", ("a",))),
    ],
)
def test_what_ranks_or_keys_a_request_is_checked_first(
    field: str, value: Any, policy: SchedulingPolicy
) -> None:
    """A wrong type is refused by name; whoever is queued already goes on untouched."""
    driver = Driver(policy=policy)
    driver.add(make_request("a", max_tokens=2))
    before = driver.scheduler.stats()
    with pytest.raises(InvalidRequest, match=f"{field} is .*, must be") as caught:
        driver.scheduler.add(make_request("b", **{field: value}))
    assert (caught.value.field, caught.value.value) == (field, value)
    assert driver.scheduler.stats() == before
    driver.scheduler.check_integrity()
    driver.add(make_request("b", max_tokens=2))
    driver.run()


def test_an_id_is_taken_until_its_request_ends() -> None:
    """The duplicate is refused, the first one goes on, and then the id is free."""
    driver = Driver()
    driver.add(make_request(max_tokens=3))
    for _ in range(2):
        with pytest.raises(DuplicateRequest, match="'a'"):
            driver.scheduler.add(make_request(prompt=7))
        driver.step()
    driver.run()
    assert len(driver.outputs[SequenceKey("a", 0)]) == 3
    driver.add(make_request(max_tokens=2))
    driver.run()
    assert len(driver.outputs[SequenceKey("a", 0)]) == 2
