"""Log-probabilities: raw, complete, one per token, and the prompt's over chunks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybrid.sampler.sampled_step import TokenLogprobs
from hybrid.sampler.sampler import Sampler
from hybrid.sampler.token_logprobs import token_logprobs
from tests.hybrid.sampler_stand import (
    make_entry,
    make_plan,
    make_request,
    make_result,
    random_rows,
    step,
)

VOCAB = 50


def drawn_with(**params: object) -> TokenLogprobs:
    """The log-probabilities of one draw from a fixed row."""
    request = make_request(seed=1, **params)
    sampler = Sampler(VOCAB)
    sampler.add_request(request)
    sampled = step(sampler, [(request, random_rows(1, VOCAB)[0])])
    assert sampled.logprobs[0] is not None
    (found,) = sampled.logprobs[0]
    assert found.token_id == sampled.token_ids[0][0]
    return found


def test_they_are_those_of_the_raw_logits_whatever_is_asked() -> None:
    """Temperature, top_k, penalties, masks and bias change the draw, not these."""
    row = torch.tensor(random_rows(1, VOCAB)[0], dtype=torch.float64)
    wanted = torch.log_softmax(row, -1)
    for params in (
        {},
        {"temperature": 0.1},
        {"top_k": 1},
        {"logit_bias": {3: 50.0}},
        {"allowed_token_ids": (7,), "repetition_penalty": 3.0},
        {"temperature": 0.0, "min_p": 1.0},
    ):
        found = drawn_with(logprobs=VOCAB, **params)
        by_id = dict(zip(found.top_token_ids, found.top_logprobs, strict=True))
        got = np.array([by_id[i] for i in range(VOCAB)])
        assert np.allclose(got, wanted, atol=1e-12)
        assert np.exp(got).sum() == pytest.approx(1.0, abs=1e-12)
        assert found.logprob == by_id[found.token_id]
        assert found.rank == found.top_token_ids.index(found.token_id) + 1


@pytest.mark.parametrize("count", [0, 1, 20])
def test_as_many_are_listed_as_asked_and_the_drawn_one_beside(count: int) -> None:
    """The drawn id's own entry is there also when it is not among the likeliest."""
    found = drawn_with(logprobs=count, logit_bias={9: 100.0})
    assert len(found.top_token_ids) == len(found.top_logprobs) == count
    assert found.token_id == 9
    assert 9 not in found.top_token_ids[: min(count, found.rank - 1)]


def test_without_the_wish_there_are_none() -> None:
    """``None`` for the request that did not ask, also beside one that did."""
    quiet, curious = make_request("q", seed=1), make_request("c", logprobs=0, seed=1)
    sampler = Sampler(VOCAB)
    sampler.add_request(quiet)
    sampler.add_request(curious)
    rows = random_rows(2, VOCAB)
    sampled = step(sampler, [(quiet, rows[0]), (curious, rows[1])])
    assert sampled.logprobs[0] is None
    assert sampled.logprobs[1] is not None


def test_each_sample_of_a_fork_carries_its_own() -> None:
    """N draws of one row give n entries in the order of the samples."""
    request = make_request(n=5, logprobs=2, seed=1, temperature=3.0)
    sampler = Sampler(VOCAB)
    sampler.add_request(request)
    plan = make_plan(make_entry(request, num_samples=5))
    sampled = sampler.sample(plan, make_result(random_rows(1, VOCAB)))
    assert sampled.logprobs[0] is not None
    found = [entry.token_id for entry in sampled.logprobs[0]]
    assert found == list(sampled.token_ids[0])


@given(st.lists(st.integers(-2, 2), min_size=1, max_size=12), st.data())
def test_ranks_count_the_likelier_and_the_lower_equal_ids(
    values: list[int], data: st.DataObject
) -> None:
    """Ranks are a permutation that follows a stable sort, ties and all."""
    row = np.array(values, np.float32)
    token_id = data.draw(st.integers(0, len(values) - 1))
    (found,) = token_logprobs(row, (token_id,), len(values))
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    assert list(found.top_token_ids) == order
    assert found.rank == order.index(token_id) + 1


def test_masked_logits_of_the_model_itself_have_probability_zero() -> None:
    """A model's own -inf gives -inf, no NaN, and the others sum to one."""
    row = np.array([0.0, -np.inf, 1.0], np.float32)
    found = token_logprobs(row, (1, 2), 3)
    assert found[0].logprob == -np.inf
    assert np.exp(found[0].top_logprobs).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("preempt_after", [None, 1, 2])
def test_the_prompts_own_cover_it_once_from_the_second_token(
    chunk: int, preempt_after: int | None
) -> None:
    """Any chunking, and a preemption in the middle, give one entry per position."""
    prompt = list(range(10))
    request = make_request(prompt=prompt, prompt_logprobs=2, seed=0, n=2)
    rows = random_rows(10, VOCAB)
    sampler = Sampler(VOCAB)
    sampler.add_request(request)
    found: list[TokenLogprobs] = []
    starts = list(range(0, 10, chunk))
    if preempt_after is not None:
        starts = starts[:preempt_after] + starts
    for start in starts:
        tokens = prompt[start : start + chunk]
        is_last = start + chunk >= 10
        entry = make_entry(
            request,
            token_ids=tokens,
            num_computed_tokens=start,
            num_logits_rows=len(tokens),
            num_samples=2 if is_last and len(found) < 9 + is_last else 0,
        )
        sampled = sampler.sample(
            make_plan(entry), make_result(rows[start : start + len(tokens)])
        )
        assert sampled.prompt_logprobs[0] is not None
        found += sampled.prompt_logprobs[0]
        if is_last:
            break
    assert [entry.token_id for entry in found] == prompt[1:]
    wanted = torch.log_softmax(torch.tensor(rows, dtype=torch.float64), -1)
    for position, entry in enumerate(found):
        assert entry.logprob == pytest.approx(float(wanted[position, position + 1]))
    later = make_entry(request, sample_index=1, num_computed_tokens=10, token_ids=(4,))
    sampled = sampler.sample(make_plan(later), make_result(rows[:1]))
    assert sampled.prompt_logprobs == ((),)


def test_a_recomputed_answer_reports_no_prompt_token_again() -> None:
    """Prompt and outputs in one entry after a preemption: the prompt was reported."""
    request = make_request(prompt=(1, 2, 3), prompt_logprobs=0, seed=0)
    sampler = Sampler(VOCAB)
    sampler.add_request(request)
    rows = random_rows(3, VOCAB)
    entry = make_entry(request, num_logits_rows=3)
    sampled = sampler.sample(make_plan(entry), make_result(rows))
    assert sampled.prompt_logprobs[0] is not None
    assert len(sampled.prompt_logprobs[0]) == 2
    again = make_entry(request, token_ids=(1, 2, 3, 9), num_logits_rows=4)
    sampled = sampler.sample(make_plan(again), make_result(random_rows(4, VOCAB)))
    assert sampled.prompt_logprobs == ((),)


def test_a_prompt_token_without_a_column_has_probability_zero() -> None:
    """It ranks behind every id that can be drawn; the others keep their values."""
    request = make_request(prompt=(1, 7, 2), prompt_logprobs=1, temperature=0.0)
    sampler = Sampler(8, num_valid_ids=5)
    sampler.add_request(request)
    entry = make_entry(request, num_logits_rows=3)
    sampled = sampler.sample(make_plan(entry), make_result(random_rows(3, 8)))
    assert sampled.prompt_logprobs[0] is not None
    beyond, inside = sampled.prompt_logprobs[0]
    assert (beyond.token_id, beyond.logprob, beyond.rank) == (7, -np.inf, 6)
    assert inside.logprob > -np.inf


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_broken_prompt_row_fails_its_request(bad: float) -> None:
    """Neither numbers that are none nor a token; the request ends instead."""
    request = make_request(prompt=(1, 2, 3), prompt_logprobs=0, temperature=0.0)
    sampler = Sampler(VOCAB)
    sampler.add_request(request)
    rows = random_rows(3, VOCAB)
    rows[1] = bad
    entry = make_entry(request, num_logits_rows=3)
    sampled = sampler.sample(make_plan(entry), make_result(rows))
    assert [failure.request_id for failure in sampled.failed] == ["a"]
    assert sampled.token_ids == ((0,),)
    assert sampled.prompt_logprobs == (None,)
