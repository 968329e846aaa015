"""Random rows: what is kept, with what probability, and what a draw depends on."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybrid.sampler.candidates import candidates, top_ids
from hybrid.sampler.sampler import Sampler
from hybrid.sampler.uniform import derive_seed, uniform
from hybrid.scheduler.generate_request import GenerateRequest
from hybrid.scheduler.plan import SequenceKey
from hybrid.scheduler.sampling_params import SamplingParams
from tests.hybrid.sampler_stand import (
    make_entry,
    make_plan,
    make_request,
    make_result,
    random_rows,
    step,
)

VOCAB = 64
PINNED_42_0_0 = 0.8201981478608876
PINNED_SEED_0_0 = 8274925104122819374
LOGITS = st.lists(
    st.one_of(
        st.floats(-30, 30, width=32),
        st.integers(-3, 3).map(float),  # many ties
        st.just(-np.inf),
    ),
    min_size=1,
    max_size=40,
).filter(lambda row: max(row) > -np.inf)


def reference(row: Sequence[float], params: SamplingParams) -> NDArray[np.float64]:
    """Probabilities by a naive float64 reading of the documentation."""
    logits = np.asarray(row, np.float32).astype(np.float64)
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    weights = np.exp((logits - logits.max()) / params.temperature)
    weights[weights < params.min_p] = 0.0
    if params.top_k:
        weights[order[params.top_k :]] = 0.0
    if params.top_p < 1.0:
        total, mass = weights.sum(), 0.0
        for index in order:
            if mass >= params.top_p * total:
                weights[index] = 0.0
            mass += weights[index]
    return weights / weights.sum()


def found(row: Sequence[float], params: SamplingParams) -> NDArray[np.float64]:
    """Probabilities that the sampler draws with."""
    logits = np.asarray(row, np.float32)
    choice = candidates(logits, params)
    probabilities = np.zeros(len(logits))
    ids = np.arange(len(logits)) if choice.ids is None else choice.ids
    probabilities[ids] = choice.weights
    return probabilities / probabilities.sum()


@given(
    LOGITS,
    st.sampled_from([0.05, 0.5, 1.0, 2.0, 50.0]),
    st.integers(0, 45),
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0),
)
def test_kept_ids_and_weights_equal_a_naive_reading(
    row: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """min_p, top_k and top_p together keep what float64 keeps, unless at the brink."""
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )
    # A threshold hit within float32's rounding may fall either way.
    brinks = [
        reference(
            row,
            SamplingParams(
                temperature=temperature,
                top_k=top_k,
                top_p=min(1.0, top_p * (1 + shift)),
                min_p=min(1.0, min_p * (1 + other)),
            ),
        )
        for shift in (-1e-5, 0.0, 1e-5)
        for other in (-1e-5, 0.0, 1e-5)
    ]
    got = found(row, params)
    assert any(np.allclose(got, wanted, rtol=1e-4, atol=1e-7) for wanted in brinks)


@given(LOGITS, st.integers(1, 45))
def test_top_ids_are_those_of_a_stable_sort(row: list[float], k: int) -> None:
    """Any k, ties and masked ids included: highest first, equal ones by id."""
    logits = np.asarray(row, np.float32)
    order = sorted(range(len(row)), key=lambda i: (-logits[i], i))
    assert top_ids(logits, k).tolist() == order[:k]


@pytest.mark.parametrize("k", [1, 2, 50, 256, 3000, 5000, 9000])
def test_top_ids_of_a_large_vocabulary_are_those_of_a_stable_sort(k: int) -> None:
    """The partition and the packed full sort agree with a stable argsort."""
    row = np.round(random_rows(1, 8000)[0], 1)
    row[::7] = -np.inf
    row[5] = -0.0
    wanted = np.argsort(-row, kind="stable")[:k]
    assert np.array_equal(top_ids(row, k), wanted)


@pytest.mark.parametrize("scale", [0.01, 1.0, 6.0])
def test_top_p_is_exact_whether_the_nucleus_is_small_or_the_vocabulary(
    scale: float,
) -> None:
    """The first few hundred ids, or all: the set is the naive one."""
    row = random_rows(1, 5000, scale=scale)[0]
    params = SamplingParams(top_p=0.9)
    wanted = reference(row.tolist(), params)
    got = found(row.tolist(), params)
    assert abs(np.count_nonzero(got) - np.count_nonzero(wanted)) <= 1
    assert np.allclose(got, wanted, rtol=1e-3, atol=1e-9)


@given(LOGITS, st.floats(0.0, 1.0, exclude_max=True))
@settings(max_examples=200)
def test_a_draw_is_where_the_uniform_falls(row: list[float], position: float) -> None:
    """The id drawn is the one whose stretch of the cumulative sum holds the number."""
    params = SamplingParams()
    choice = candidates(np.asarray(row, np.float32), params)
    drawn = choice.pick(position)
    edges = np.concatenate([[0.0], np.cumsum(reference(row, params))])
    assert edges[drawn] - 1e-6 <= position <= edges[drawn + 1] + 1e-6
    assert row[drawn] > -np.inf


@pytest.mark.parametrize("position", [0.0, 0.3, 0.999, 1 - 2**-53])
def test_a_draw_from_a_large_vocabulary_never_leaves_the_mask(position: float) -> None:
    """Blocks without any weight, the first and the last included, are passed over."""
    row = np.full(5000, -np.inf, np.float32)
    row[[1500, 1501, 3000]] = 0.0
    choice = candidates(row, SamplingParams())
    wanted = [1500, 1501, 3000][min(int(position * 3), 2)]
    assert choice.pick(position) == wanted


def test_frequencies_follow_the_probabilities() -> None:
    """Four thousand positions of one seed: a chi-squared test passes."""
    row = np.log(np.array([0.5, 0.25, 0.125, 0.0625, 0.0625]))
    request = make_request(seed=11)
    sampler = Sampler(5)
    sampler.add_request(request)
    num_draws = 4000
    drawn = [step(sampler, [(request, row)]).token_ids[0][0] for _ in range(num_draws)]
    expected = np.exp(row) * num_draws
    chi_squared = ((np.bincount(drawn, minlength=5) - expected) ** 2 / expected).sum()
    assert chi_squared < 18.5  # the 99.9 % quantile at four degrees of freedom


def test_uniforms_of_neighbouring_coordinates_differ() -> None:
    """Seed, position and sample each change the number; it stays below one."""
    numbers = {
        uniform(seed, position, sample)
        for seed in (0, 1, 2**64 - 1)
        for position in range(20)
        for sample in range(5)
    }
    assert len(numbers) == 3 * 20 * 5
    assert all(0.0 <= number < 1.0 for number in numbers)
    assert len({derive_seed(e, i) for e in (-1, 0, 7) for i in range(50)}) == 150


def test_the_stream_of_a_seed_is_pinned() -> None:
    """A seed's numbers are part of the interface: a release must not change them."""
    assert uniform(42, 0, 0) == PINNED_42_0_0
    assert derive_seed(0, 0) == PINNED_SEED_0_0


HOSTILE = [
    make_request("h", seed=5),
    make_request("h", top_p=0.3),
    make_request("h", temperature=0.0),
    make_request("h", repetition_penalty=2.0, presence_penalty=2.0, seed=42),
    make_request("h", allowed_token_ids=(3,), seed=42),
    make_request("h", seed=42),
]


def run(
    sampler: Sampler, request: GenerateRequest, rows: Sequence[NDArray[np.float32]]
) -> list[int]:
    """The request's tokens over these rows, alone in each step."""
    return [step(sampler, [(request, row)]).token_ids[0][0] for row in rows]


@pytest.mark.parametrize("neighbour", HOSTILE)
@pytest.mark.parametrize("first", [True, False])
def test_a_seeded_request_ignores_its_neighbours(
    neighbour: GenerateRequest, first: bool
) -> None:
    """Same tokens alone, beside an equal request, and beside a hostile one."""
    rows = random_rows(12, VOCAB)
    request = make_request("a", seed=42, top_p=0.95)
    alone = Sampler(VOCAB)
    alone.add_request(request)
    wanted = run(alone, request, list(rows))

    sampler = Sampler(VOCAB, seed=99)
    for added in (neighbour, request):
        sampler.add_request(added)
    got = []
    for i, row in enumerate(rows):
        pairs = [(request, row), (neighbour, random_rows(1, VOCAB, seed=i)[0])]
        sampled = step(sampler, pairs if first else pairs[::-1])
        got.append(sampled.token_ids[0 if first else 1][0])
        if i == 8:
            sampler.release([SequenceKey("h", 0)])
            sampler.add_request(neighbour)
    assert got == wanted


def test_preemption_does_not_restart_the_stream() -> None:
    """Recomputed with prompt and outputs in one entry, a sequence draws on."""
    rows = list(random_rows(10, VOCAB))
    request = make_request(seed=7)
    plain, preempted = Sampler(VOCAB), Sampler(VOCAB)
    for sampler in (plain, preempted):
        sampler.add_request(request)
    wanted = run(plain, request, rows)
    got = run(preempted, request, rows[:5])
    # Back after a preemption: a chunk without a draw, then one with.
    everything = (*request.prompt_token_ids, *got)
    chunk = make_entry(
        request, token_ids=everything[:4], num_samples=0, num_logits_rows=0
    )
    preempted.sample(make_plan(chunk), make_result(np.empty((0, VOCAB))))
    rest = make_entry(request, token_ids=everything[4:], num_computed_tokens=4)
    got.append(
        preempted.sample(make_plan(rest), make_result([rows[5]])).token_ids[0][0]
    )
    got += run(preempted, request, rows[6:])
    assert got == wanted


def test_unseeded_requests_repeat_with_the_engine_seed_and_order() -> None:
    """Engine seed and order of arrival decide; two equal requests still differ."""
    rows = list(random_rows(8, VOCAB))

    def answers(engine_seed: int) -> tuple[list[int], list[int]]:
        sampler = Sampler(VOCAB, seed=engine_seed)
        first, second = make_request("a"), make_request("b")
        sampler.add_request(first)
        sampler.add_request(second)
        return run(sampler, first, rows), run(sampler, second, rows)

    assert answers(0) == answers(0)
    assert answers(0) != answers(1)
    first, second = answers(0)
    assert first != second


def test_samples_of_one_request_fork_and_go_their_own_way() -> None:
    """N draws of the prompt's row start n histories, each with draws of its own."""
    request = make_request(n=4, seed=3, frequency_penalty=0.5)
    sampler = Sampler(VOCAB)
    sampler.add_request(request)
    row = random_rows(1, VOCAB)[0]
    entry = make_entry(request, num_samples=4)
    firsts = sampler.sample(make_plan(entry), make_result([row])).token_ids[0]
    assert len(firsts) == 4
    assert len(set(firsts)) > 1
    entries = [make_entry(request, sample_index=j) for j in range(4)]
    sampled = sampler.sample(make_plan(*entries), make_result([row] * 4))
    drawer = sampler._requests["a"]
    for sample in range(4):
        history = drawer._histories[sample]
        drawn = [firsts[sample], sampled.token_ids[sample][0]]
        assert history.output_token_ids == drawn
        assert history.output_counts is not None
        assert set(history.output_counts.ids.tolist()) == set(drawn)


def test_sample_zero_of_many_equals_the_only_sample() -> None:
    """Asking for more samples does not change the first one."""
    rows = list(random_rows(5, VOCAB))
    one, many = make_request("one", seed=9), make_request("many", seed=9, n=3)
    sampler = Sampler(VOCAB)
    sampler.add_request(one)
    sampler.add_request(many)
    wanted = run(sampler, one, rows)
    entry = make_entry(many, num_samples=3)
    got = [sampler.sample(make_plan(entry), make_result([rows[0]])).token_ids[0][0]]
    got += run(sampler, many, rows[1:])
    assert got == wanted
