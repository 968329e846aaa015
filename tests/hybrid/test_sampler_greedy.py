"""Greedy rows: ties, tiny temperatures, broken logits, padded heads, shared memory."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybrid.backends.interface import ForwardResult
from hybrid.sampler.sampler import Sampler
from tests.hybrid.sampler_stand import (
    draw_one,
    make_entry,
    make_plan,
    make_request,
    make_result,
    random_rows,
    step,
)

WIDE = np.linspace(-60.0, 60.0, 500)[np.random.default_rng(3).permutation(500)]


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"top_k": 1}])
def test_ties_go_to_the_lowest_id_every_time(params: dict[str, float]) -> None:
    """Two equal maxima give the lower id, greedy and with top_k=1, a hundred times."""
    row = [0.0, 5.0, 1.0, 5.0]
    assert {draw_one(row, seed=seed, **params) for seed in range(100)} == {1}


def test_ties_through_the_processed_path_go_to_the_lowest_id() -> None:
    """A row that was copied and changed breaks ties as a raw one does."""
    row = [0.0, 5.0, 1.0, 5.0]
    assert draw_one(row, temperature=0.0, logit_bias={0: 5.0}) == 0
    assert draw_one(row, top_k=1, logit_bias={3: -0.0}) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [1e-3, 1e-4, 1e-5, 1e-6, 1e-12, 5e-324])
def test_a_tiny_temperature_is_the_argmax(
    temperature: float, dtype: torch.dtype
) -> None:
    """Logits over +-60 of any precision: no NaN, no overflow, the highest wins."""
    row = torch.tensor(WIDE).to(dtype).float().numpy()
    drawn = {draw_one(row, temperature=temperature, seed=s) for s in range(20)}
    highest = np.flatnonzero(row == row.max()).tolist()
    assert drawn <= set(highest)
    if temperature < 1e-5:
        assert drawn == {highest[0]}


@pytest.mark.parametrize("temperature", [1.0, 1e-2, 1e30, 1e300])
def test_any_temperature_draws_an_id(temperature: float) -> None:
    """Up to the largest temperatures a draw is an id, masked ones excluded."""
    row = WIDE.copy()
    row[:400] = -np.inf
    for seed in range(10):
        assert 400 <= draw_one(row, temperature=temperature, seed=seed) < 500


def test_extreme_finite_logits_do_not_overflow() -> None:
    """The two ends of float32 in one row still give the higher."""
    high = float(np.finfo(np.float32).max)
    row = [-high, high, 0.0]
    assert draw_one(row, temperature=1.0, seed=1) == 1
    assert draw_one(row, temperature=1e-5, top_p=0.5, seed=1) == 1


@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_greedy_equals_numpy_argmax(num_rows: int, vocab: int, seed: int) -> None:
    """Every row of any batch is numpy's argmax, first index on ties."""
    rows = np.random.default_rng(seed).integers(0, 4, (num_rows, vocab))
    requests = [make_request(str(i), temperature=0.0) for i in range(num_rows)]
    sampler = Sampler(vocab)
    for request in requests:
        sampler.add_request(request)
    sampled = step(sampler, list(zip(requests, rows, strict=True)))
    assert [ids[0] for ids in sampled.token_ids] == rows.argmax(axis=1).tolist()


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [1.0, np.inf], [-np.inf, -np.inf]])
@pytest.mark.parametrize(
    "params", [{"temperature": 0.0}, {"seed": 1}, {"logit_bias": {0: 1.0}}]
)
def test_logits_that_are_not_finite_name_the_request(
    bad: list[float], params: dict[str, float]
) -> None:
    """A broken row is a failure that names its request, not a token."""
    good, broken = make_request("good", seed=1), make_request("broken", **params)
    sampler = Sampler(2)
    sampler.add_request(good)
    sampler.add_request(broken)
    sampled = step(sampler, [(good, [0.0, 1.0]), (broken, bad)])
    (failure,) = sampled.failed
    assert failure.request_id == "broken"
    assert "'broken'" in str(failure)
    assert "highest logit" in str(failure)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_broken_row_leaves_its_neighbour_unharmed(is_first: bool) -> None:
    """The neighbour draws what it would draw alone, in that step and the next ones."""
    good, broken = make_request("good", seed=1), make_request("broken", logprobs=1)
    row, broken_row = random_rows(1, 50)[0], np.full(50, np.nan)
    alone = Sampler(50)
    alone.add_request(good)
    wanted = [step(alone, [(good, row)]).token_ids[0] for _ in range(3)]

    sampler = Sampler(50)
    sampler.add_request(good)
    sampler.add_request(broken)
    pairs = [(broken, broken_row), (good, row)]
    sampled = step(sampler, pairs if is_first else pairs[::-1])
    found = sampled.token_ids if is_first else sampled.token_ids[::-1]
    assert found == ((0,), wanted[0])
    assert sampled.logprobs == (None, None)
    assert [step(sampler, [(good, row)]).token_ids[0] for _ in range(2)] == wanted[1:]


def test_a_request_fails_with_all_its_samples_once() -> None:
    """One broken sample takes back the draw of the sample before it and stops the next.

    Three sequences of one request share the step; the one in the middle is broken.
    """
    request = make_request(n=3, seed=1)
    sampler = Sampler(50)
    sampler.add_request(request)
    row = random_rows(1, 50)[0]
    fork = make_entry(request, num_samples=3)
    drawn = sampler.sample(make_plan(fork), make_result([row])).token_ids[0]
    entries = [make_entry(request, sample_index=j) for j in range(3)]
    rows = [row, np.full(50, np.nan), np.full(50, np.nan)]
    sampled = sampler.sample(make_plan(*entries), make_result(rows))
    assert sampled.token_ids == ((0,), (0,), (0,))
    assert [failure.request_id for failure in sampled.failed] == ["a"]
    histories = sampler._requests["a"]._histories
    assert [histories[j].output_token_ids for j in range(3)] == [[i] for i in drawn]


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"seed": 3}, {"top_p": 0.5}])
def test_columns_beyond_the_tokenizer_are_never_drawn(
    params: dict[str, float],
) -> None:
    """A padded head's extra columns do not exist, however high their logits."""
    request = make_request(logprobs=5, **params)
    sampler = Sampler(8, num_valid_ids=5)
    sampler.add_request(request)
    sampled = step(sampler, [(request, [0, 1, 2, 3, 4, 90, 99, 99])])
    assert sampled.token_ids[0][0] < 5
    assert sampled.logprobs[0] is not None
    top = sampled.logprobs[0][0].top_logprobs
    assert np.exp(top).sum() == pytest.approx(1.0, abs=1e-9)


def test_an_executors_tensor_is_shared_and_never_written() -> None:
    """A torch tensor is read in place; no parameter changes a byte of it."""
    request = make_request(
        temperature=0.7,
        seed=1,
        logit_bias={3: 2.0},
        repetition_penalty=1.5,
        frequency_penalty=1.0,
        min_tokens=2,
        allowed_token_ids=(1, 2, 3, 4),
        logprobs=2,
        eos=(4,),
    )
    sampler = Sampler(30)
    sampler.add_request(request)
    logits = torch.from_numpy(random_rows(1, 30))
    before = logits.clone()
    for _ in range(4):
        sampler.sample(make_plan(make_entry(request)), ForwardResult(logits=logits))
    assert torch.equal(logits, before)
    assert np.shares_memory(
        sampler._view(ForwardResult(logits=logits)),
        logits.numpy(),
    )


def test_a_step_without_logits_rows_needs_no_logits() -> None:
    """A chunk of a prompt that draws nothing comes back empty."""
    request = make_request()
    sampler = Sampler(3)
    sampler.add_request(request)
    plan = make_plan(make_entry(request, num_samples=0, num_logits_rows=0))
    sampled = sampler.sample(plan, ForwardResult())
    assert sampled.token_ids == ((),)
    assert sampled.logprobs == (None,)
