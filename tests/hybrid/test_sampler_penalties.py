"""The three penalties against transformers' processors and a naive reading."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from hybrid.sampler.candidates import candidates
from hybrid.sampler.penalties import apply_penalties, start_history
from hybrid.sampler.sampler import Sampler
from hybrid.sampler.token_history import TokenCounts
from hybrid.scheduler.sampling_params import SamplingParams
from tests.hybrid.sampler_stand import make_request, random_rows, step

VOCAB = 24
IDS = st.lists(st.integers(0, VOCAB - 1), max_size=30)


def penalised(
    row: np.ndarray, params: SamplingParams, prompt: list[int], outputs: list[int]
) -> np.ndarray:
    """The row after our penalties, with a history built token by token."""
    history = start_history(params, tuple(prompt), VOCAB)
    for token_id in outputs:
        history.append(token_id)
    changed = row.copy()
    apply_penalties(changed, params, history)
    return changed


@given(IDS.filter(bool), IDS, st.floats(0.1, 5.0), st.integers(0, 1000))
def test_repetition_is_over_prompt_and_output_as_in_transformers(
    prompt: list[int], outputs: list[int], penalty: float, seed: int
) -> None:
    """Once per distinct id of either; positive divided, negative multiplied."""
    row = random_rows(1, VOCAB, seed=seed)[0]
    got = penalised(row, SamplingParams(repetition_penalty=penalty), prompt, outputs)
    ids = torch.tensor([prompt + outputs])
    wanted = RepetitionPenaltyLogitsProcessor(penalty)(ids, torch.tensor(row[None]))
    assert np.allclose(got, wanted[0].numpy(), rtol=1e-6)


@given(IDS, IDS, st.floats(-2, 2), st.floats(-2, 2))
def test_frequency_and_presence_are_over_the_output_alone(
    prompt: list[int], outputs: list[int], frequency: float, presence: float
) -> None:
    """Per occurrence and once; the prompt does not count."""
    row = random_rows(1, VOCAB)[0]
    params = SamplingParams(frequency_penalty=frequency, presence_penalty=presence)
    got = penalised(row, params, prompt, outputs)
    counts = np.bincount(np.array(outputs, int), minlength=VOCAB)
    wanted = row - frequency * counts - presence * (counts > 0)
    assert np.allclose(got, wanted, atol=1e-4)


def test_the_three_apply_in_one_order() -> None:
    """Repetition scales the logit first; the others are subtracted from the result."""
    params = SamplingParams(
        repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=1.0
    )
    row = np.zeros(VOCAB, np.float32)
    row[3], row[4] = 8.0, -8.0
    got = penalised(row, params, [4], [3, 3])
    assert got[3] == 8.0 / 2.0 - 2 * 0.5 - 1.0
    assert got[4] == -16.0


def test_a_masked_id_stays_masked_and_a_finite_one_finite() -> None:
    """Extreme penalties make neither NaN nor an infinity."""
    row = np.array([-np.inf, 5.0, -5.0, 0.0] + [1.0] * 20, np.float32)
    for penalty in (5e-324, 1e-30, 1e30, 1e300):
        params = SamplingParams(repetition_penalty=penalty)
        got = penalised(row, params, [0, 1, 2, 3], [0])
        assert got[0] == -np.inf
        assert np.isfinite(got[1:]).all()


def test_penalties_act_on_what_was_drawn() -> None:
    """A greedy answer with a presence penalty walks down the ranks."""
    request = make_request(prompt=(0,), temperature=0.0, presence_penalty=2.0)
    sampler = Sampler(4)
    sampler.add_request(request)
    row = [4.0, 3.0, 2.5, 0.0]
    drawn = [step(sampler, [(request, row)]).token_ids[0][0] for _ in range(3)]
    assert drawn == [0, 1, 2]


def test_prompt_ids_of_a_padded_head_are_passed_over() -> None:
    """An id that has no column here has no logit to penalise."""
    request = make_request(prompt=(1, 6), temperature=0.0, repetition_penalty=9.0)
    sampler = Sampler(8, num_valid_ids=5)
    sampler.add_request(request)
    assert step(sampler, [(request, [1, 3, 2, 0, 0, 0, 0, 0])]).token_ids == ((2,),)


@given(IDS, IDS)
def test_counts_equal_numpys_and_a_copy_shares_nothing(
    first: list[int], second: list[int]
) -> None:
    """Appending one by one counts as bincount does, past every growth."""
    counts = TokenCounts()
    for token_id in first:
        counts.append(token_id)
    twin = counts.copy()
    for token_id in second:
        twin.append(token_id)
    for found, tokens in ((counts, first), (twin, first + second)):
        dense = np.zeros(VOCAB, int)
        dense[found.ids] = found.counts
        assert np.array_equal(
            dense, np.bincount(np.array(tokens, int), minlength=VOCAB)
        )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("params", "warpers"),
    [
        ({"top_k": 7}, [TopKLogitsWarper(7)]),
        ({"top_p": 0.8}, [TopPLogitsWarper(0.8)]),
        ({"min_p": 0.1}, [MinPLogitsWarper(0.1)]),
        (
            {"temperature": 0.6, "top_k": 9, "top_p": 0.7},
            [TemperatureLogitsWarper(0.6), TopKLogitsWarper(9), TopPLogitsWarper(0.7)],
        ),
        (
            {"temperature": 1.7, "min_p": 0.05},
            [TemperatureLogitsWarper(1.7), MinPLogitsWarper(0.05)],
        ),
    ],
)
def test_the_distribution_is_that_of_transformers_warpers(
    params: dict[str, float], warpers: list[TopKLogitsWarper], seed: int
) -> None:
    """Temperature, top_k, top_p and min_p keep and weigh what transformers does."""
    row = random_rows(1, 60, seed=seed)[0]
    scores = torch.tensor(row[None])
    for warper in warpers:
        scores = warper(None, scores)
    wanted = torch.softmax(scores, -1)[0].numpy()
    choice = candidates(row, SamplingParams(**params))
    got = np.zeros(60)
    got[np.arange(60) if choice.ids is None else choice.ids] = choice.weights
    assert np.allclose(got / got.sum(), wanted, atol=1e-6)
