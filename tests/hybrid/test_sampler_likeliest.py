"""Ids that an executor names as the likeliest: taken where no more is asked."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from hybrid.backends.interface import ForwardResult
from hybrid.sampler.sampled_step import SampledStep
from hybrid.sampler.sampler import Sampler
from hybrid.scheduler import GenerateRequest, SequenceKey
from tests.hybrid.sampler_stand import make_entry, make_plan, make_request

ROW = (0.0, 2.0, 1.0, 5.0)
"""Whose highest no executor below names, so that it shows who has looked."""


def sample(
    sampler: Sampler,
    requests: Sequence[GenerateRequest],
    likeliest: tuple[int, ...],
    row: Sequence[float] = ROW,
) -> SampledStep:
    """Sample a step of requests, all with the same row."""
    plan = make_plan(*map(make_entry, requests))
    plan = replace(plan, needs_logits=not sampler.wants_likeliest(plan))
    logits = np.array([row] * len(requests), np.float32)
    result = ForwardResult(logits=logits, likeliest_ids=likeliest)
    return sampler.sample(plan, result)


def sampler_of(*requests: GenerateRequest, num_valid_ids: int = 4) -> Sampler:
    """A sampler that has these requests."""
    sampler = Sampler(4, num_valid_ids=num_valid_ids)
    for request in requests:
        sampler.add_request(request)
    return sampler


def test_greedy_rows_are_not_looked_at() -> None:
    """Every entry gets the id that was named."""
    requests = [make_request(name, temperature=0.0) for name in "ab"]
    sampled = sample(sampler_of(*requests), requests, (2, 0))
    assert sampled.token_ids == ((2,), (0,))
    assert sampled.logprobs == sampled.prompt_logprobs == (None, None)
    assert not sampled.failed


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0, "seed": 1, "top_p": 0.5},
        {"temperature": 0.0, "logprobs": 0},
        {"temperature": 0.0, "logit_bias": {0: 0.5}},
        {"temperature": 0.0, "repetition_penalty": 1.5},
        {"temperature": 0.0, "allowed_token_ids": (3, 1)},
    ],
)
def test_a_request_that_wants_more_is_drawn_from_its_logits(
    params: dict[str, object],
) -> None:
    """And so is its greedy neighbour, until it has gone."""
    watched = make_request("w", **params)  # type: ignore[arg-type]
    plain = make_request("p", temperature=0.0)
    sampler = sampler_of(watched, plain)
    assert sample(sampler, [watched, plain], (2, 2)).token_ids == ((3,), (3,))
    assert sample(sampler, [plain], (2,)).token_ids == ((2,),)
    sampler.release([SequenceKey("w", 0)])
    again = make_request("w", temperature=0.0)
    sampler.add_request(again)
    assert sample(sampler, [again, plain], (2, 2)).token_ids == ((2,), (2,))


def test_an_id_reused_by_a_request_that_wants_more_is_watched() -> None:
    """Also where the one before it, ended, has yet to be released."""
    sampler = sampler_of(make_request("a", temperature=0.0))
    biased = make_request("a", temperature=0.0, logit_bias={0: 9.0})
    sampler.add_request(biased)
    assert sample(sampler, [biased], (2,)).token_ids == ((0,),)


def test_an_id_that_no_tokenizer_knows_is_not_taken() -> None:
    """The highest of the columns that count is looked for instead."""
    request = make_request(temperature=0.0)
    sampler = sampler_of(request, num_valid_ids=3)
    assert sample(sampler, [request], (3,)).token_ids == ((1,),)
    assert sample(sampler, [request], (2,)).token_ids == ((2,),)


def test_a_row_of_which_nothing_is_said_is_looked_at() -> None:
    """It ends its request where it is no distribution, and only that one."""
    requests = [make_request(name, temperature=0.0) for name in "ab"]
    assert sample(sampler_of(*requests), requests, (-1, 2)).token_ids == ((3,), (3,))
    row = (0.0, np.nan, 1.0, 5.0)
    sampled = sample(sampler_of(*requests), requests[:1], (-1,), row)
    assert [error.request_id for error in sampled.failed] == ["a"]
    assert "highest logit is nan" in str(sampled.failed[0])
