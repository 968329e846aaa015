"""What the sampler keeps of requests: plugged processors, release, reuse, adoption."""

import re
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from hybrid.backends.interface import ForwardResult
from hybrid.sampler.logits_processor import LogitsProcessor
from hybrid.sampler.sampler import Sampler
from hybrid.sampler.validation import check_params
from hybrid.scheduler.errors import (
    InvalidRequest,
    SamplingFailed,
    UnsupportedFeature,
)
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


class Forced(LogitsProcessor):
    """Allows one id: the number of outputs so far plus the sample's index."""

    def applies_to(self, request: GenerateRequest) -> bool:
        """Requests whose id says so."""
        return request.request_id.startswith("forced")

    def apply(
        self,
        request: GenerateRequest,
        sample_index: int,
        output_token_ids: Sequence[int],
        row: NDArray[np.float32],
    ) -> None:
        """Mask everything else."""
        assert request.request_id.startswith("forced")
        keep = len(output_token_ids) + sample_index
        row[np.arange(len(row)) != keep] = -np.inf


class Broken(Forced):
    """Raises, or leaves nothing, as it is told."""

    def __init__(self, fill: float | None) -> None:
        self.fill = fill

    def apply(
        self,
        request: GenerateRequest,
        sample_index: int,
        output_token_ids: Sequence[int],
        row: NDArray[np.float32],
    ) -> None:
        """Fail."""
        del request, sample_index, output_token_ids
        if self.fill is None:
            raise ValueError("no grammar")
        row[:] = self.fill


def test_a_plugged_processor_acts_on_its_own_requests_only() -> None:
    """It sees the outputs and the sample, and leaves the neighbour's row alone."""
    forced, free = make_request("forced", n=2, seed=0), make_request("x", top_k=1)
    sampler = Sampler(9, logits_processors=[Forced()])
    sampler.add_request(forced)
    sampler.add_request(free)
    rows = random_rows(2, 9)
    plan = make_plan(make_entry(forced, num_samples=2), make_entry(free))
    sampled = sampler.sample(plan, make_result(rows))
    assert sampled.token_ids == ((0, 1), (int(rows[1].argmax()),))
    plan = make_plan(*(make_entry(forced, sample_index=j) for j in range(2)))
    assert sampler.sample(plan, make_result(rows)).token_ids == ((1,), (2,))


@pytest.mark.parametrize(
    ("fill", "said"),
    [(None, "ValueError: no grammar"), (np.nan, "nan"), (-np.inf, "-inf")],
)
def test_a_processor_that_fails_is_named_with_its_request(
    fill: float | None, said: str
) -> None:
    """The error says which processor, which request and what; nothing is committed."""
    request = make_request("forced", seed=0)
    sampler = Sampler(4, logits_processors=[Broken(fill)])
    sampler.add_request(request)
    sampled = step(sampler, [(request, [0.0, 1.0, 2.0, 3.0])])
    (failure,) = sampled.failed
    assert failure.request_id == "forced"
    assert re.search(f"'forced'.*Broken.*{said}", str(failure))
    assert sampler._requests["forced"]._histories[0].output_token_ids == []


class Undecided(Forced):
    """Cannot say which requests it is for."""

    def applies_to(self, request: GenerateRequest) -> bool:
        """Raise for one of them."""
        if request.request_id == "odd":
            raise KeyError("grammar")
        return False


def test_a_processor_that_cannot_say_whether_it_applies_refuses_the_request() -> None:
    """Named with the request; nothing is kept, not even a place in the seeds' order."""
    row = random_rows(1, 40)[0]
    odd, other = make_request("odd"), make_request("other")
    alone, sampler = Sampler(40), Sampler(40, logits_processors=[Undecided()])
    with pytest.raises(SamplingFailed, match=r"'odd'.*Undecided.*KeyError") as caught:
        sampler.add_request(odd)
    assert caught.value.request_id == "odd"
    assert sampler.num_requests == 0
    alone.add_request(other)
    sampler.add_request(other)
    pairs = [(other, row)]
    assert step(sampler, pairs).token_ids == step(alone, pairs).token_ids


@pytest.mark.parametrize(
    ("vocab_size", "num_valid_ids", "num_ids"), [(9, None, 9), (9, 5, 5), (9, 12, 9)]
)
def test_ids_that_can_be_drawn_have_a_column_and_a_token(
    vocab_size: int, num_valid_ids: int | None, num_ids: int
) -> None:
    """The fewer of the logits' columns and the tokenizer's ids."""
    assert Sampler(vocab_size, num_valid_ids=num_valid_ids).num_ids == num_ids


def test_release_forgets_a_request_with_its_last_sequence() -> None:
    """One sample after the other; unknown keys and a second release are no error."""
    request = make_request("a", n=3)
    sampler = Sampler(9)
    sampler.add_request(request)
    entry = make_entry(request, num_samples=3)
    sampler.sample(make_plan(entry), make_result(random_rows(1, 9)))
    for index in (2, 0):
        sampler.release([SequenceKey("a", index), SequenceKey("b", 0)])
        assert sampler.num_requests == 1
    sampler.release([SequenceKey("a", 1), SequenceKey("a", 1)])
    assert sampler.num_requests == 0


def test_an_id_used_again_before_its_release_starts_afresh() -> None:
    """The late release is the ended request's; the new one keeps its history."""
    rows = random_rows(6, 40)
    first, second = make_request("a", seed=1), make_request("a", seed=2)
    fresh = Sampler(40)
    fresh.add_request(second)
    wanted = [step(fresh, [(second, row)]).token_ids[0] for row in rows]

    sampler = Sampler(40)
    sampler.add_request(first)
    step(sampler, [(first, rows[0])])
    sampler.add_request(second)
    sampler.release([SequenceKey("a", 0)])
    assert sampler.num_requests == 1
    assert [step(sampler, [(second, row)]).token_ids[0] for row in rows] == wanted
    sampler.release([SequenceKey("a", 0)])
    assert sampler.num_requests == 0


def test_tokens_that_an_executor_sampled_itself_are_taken_as_they_are() -> None:
    """No logits, no log-probabilities; forks and prompt chunks keep their shape."""
    fork, chunk = make_request("f", n=2, logprobs=1), make_request("c")
    sampler = Sampler(9)
    sampler.add_request(fork)
    sampler.add_request(chunk)
    plan = make_plan(make_entry(fork, num_samples=2), make_entry(chunk, num_samples=0))
    sampled = sampler.sample(plan, ForwardResult(sampled_token_ids=((4, 5), ())))
    assert sampled.token_ids == ((4, 5), ())
    assert sampled.logprobs == sampled.prompt_logprobs == (None, None)
    sampler.release([SequenceKey("f", 0), SequenceKey("f", 1)])
    assert sampler.num_requests == 1


def test_draft_tokens_are_refused_not_miscounted() -> None:
    """Verifying guesses is not built; a plan that has some says so."""
    request = make_request()
    sampler = Sampler(9)
    sampler.add_request(request)
    entry = make_entry(request)._replace(num_draft_tokens=1)
    with pytest.raises(UnsupportedFeature, match="draft"):
        sampler.sample(make_plan(entry), make_result(random_rows(1, 9)))


@pytest.mark.parametrize(
    ("field", "value", "bad_id"),
    [
        ("logit_bias", {"999999": 5}, 999999),
        ("logit_bias", {10: 5}, 10),
        ("stop_token_ids", [3, 10], 10),
        ("allowed_token_ids", [10], 10),
    ],
)
def test_an_id_outside_the_vocabulary_names_field_and_id(
    field: str, value: object, bad_id: int
) -> None:
    """Refused before the request enters the engine."""
    params = SamplingParams(**{field: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=f"{field}.*{bad_id}.*0 to 9") as caught:
        check_params(params, [1], vocab_size=10, max_logprobs=20)
    assert caught.value.field == field
    assert caught.value.value == bad_id


@pytest.mark.parametrize("bad", [10, -1, 2**70, True, 1.0, "1", None])
def test_a_prompt_id_that_is_none_of_the_vocabulary_is_refused(bad: object) -> None:
    """Too high, negative, or no integer at all."""
    with pytest.raises(InvalidRequest, match="prompt_token_ids") as caught:
        check_params(
            SamplingParams(),
            [0, 9, bad],  # type: ignore[list-item]
            vocab_size=10,
            max_logprobs=20,
        )
    assert caught.value.field == "prompt_token_ids"


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_more_logprobs_than_the_engine_gives_are_refused(field: str) -> None:
    """The limit itself is fine, one more names the field and the limit."""
    for count in (0, 1, 20):
        params = SamplingParams(**{field: count})  # type: ignore[arg-type]
        check_params(params, [1], vocab_size=10, max_logprobs=20)
    params = SamplingParams(**{field: 21})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=f"{field} is 21.*max_logprobs=20"):
        check_params(params, [1], vocab_size=10, max_logprobs=20)
