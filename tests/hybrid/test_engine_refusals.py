"""What the engine refuses, and how it ends: bad input, full pools, dead executors."""

import pytest

from hybrid import (
    DuplicateRequest,
    EngineClosed,
    ExecutorFailed,
    FinishReason,
    InvalidRequest,
    OutOfBlocks,
    RequestTooLong,
    SamplingParams,
)
from hybrid.scheduler import GenerateRequest, StepPlan
from hybrid.testing import check_whole, ids_of, run
from tests.hybrid.null_stand import VOCAB_SIZE, FaultyExecutor, make_engine

GREEDY = SamplingParams(temperature=0, max_tokens=12)
PROMPT = [1, 2, 3]


def alone(prompt: list[int]) -> list[int]:
    """The greedy answer of a fresh engine to one prompt."""
    return ids_of(run(make_engine(), [prompt], GREEDY))[0]


@pytest.mark.parametrize("prompt", ["", [], {"prompt_token_ids": []}, {}, None, 3])
def test_an_empty_or_senseless_prompt_is_refused_and_harms_nobody(
    prompt: object,
) -> None:
    """The message names the prompt; the neighbour's answer is untouched."""
    engine = make_engine()
    engine.add_request("good", PROMPT, GREEDY, stream=False)
    engine.step()
    with pytest.raises(InvalidRequest, match="prompt"):
        engine.add_request("bad", prompt, GREEDY)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert ids_of(outputs) == [alone(PROMPT)]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"logit_bias": {999999: 5.0}}, "logit_bias"),
        ({"stop_token_ids": [VOCAB_SIZE], "min_tokens": 1}, "stop_token_ids"),
        ({"allowed_token_ids": [VOCAB_SIZE + 1]}, "allowed_token_ids"),
        ({"logprobs": 21}, "logprobs"),
        ({"stop": "text"}, "stop"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused_by_field(
    options: dict[str, object], field: str
) -> None:
    """One bad request never reaches the model."""
    engine = make_engine()
    with pytest.raises(InvalidRequest, match=field) as caught:
        engine.add_request("bad", [1], SamplingParams(**options))
    assert caught.value.field == field
    with pytest.raises(InvalidRequest, match=str(VOCAB_SIZE)):
        engine.add_request("bad", [1, VOCAB_SIZE], GREEDY)
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize(
    "options",
    [
        {"logit_bias": {95: 5.0}},
        {"allowed_token_ids": [95]},
        {"stop_token_ids": [95]},
    ],
)
def test_ids_of_a_padded_head_do_not_exist(options: dict[str, object]) -> None:
    """Rows of the head beyond the tokenizer's ids are neither asked for nor drawn."""
    engine = make_engine(num_valid_ids=90)
    engine.add_request("good", PROMPT, GREEDY, stream=False)
    with pytest.raises(InvalidRequest, match="95"):
        engine.add_request("bad", [1], SamplingParams(**options))
    with pytest.raises(InvalidRequest, match="95"):
        engine.add_request("bad", [95, 1], SamplingParams(prompt_logprobs=1))
    wild = SamplingParams(temperature=2.0, seed=1, max_tokens=60, logprobs=5)
    engine.add_request("wild", [1], wild, stream=False)
    done = {}
    while engine.has_unfinished_requests():
        done |= {output.request_id: output for output in engine.step()}
    assert len(done) == 2
    assert max(done["wild"].outputs[0].token_ids) < 90


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    """Context and pool each have their error; at the border a request runs."""
    engine = make_engine(num_blocks=4)
    with pytest.raises(RequestTooLong, match="128"):
        engine.add_request("long", [1] * 128, GREEDY)
    with pytest.raises(OutOfBlocks, match="4"):
        engine.add_request("big", [1] * 10, SamplingParams(max_tokens=10))
    roomy = make_engine(num_blocks=40)
    output = run(roomy, [[1] * 127], SamplingParams(max_tokens=5, ignore_eos=True))[0]
    assert len(output.outputs[0].token_ids) == 1
    assert output.outputs[0].finish_reason is FinishReason.LENGTH


def test_an_id_in_use_is_refused_and_free_again_afterwards() -> None:
    """Two unfinished requests never share an id."""
    engine = make_engine()
    engine.add_request("a", [1], GREEDY)
    with pytest.raises(DuplicateRequest, match="'a'"):
        engine.add_request("a", [2], GREEDY)
    engine.abort("a")
    engine.add_request("a", [2], GREEDY, stream=False)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert ids_of(outputs) == [alone([2])]


def test_an_executor_that_dies_ends_the_engine_and_says_so() -> None:
    """The step raises with the cause, later calls with the same story."""

    def fault(plan: StepPlan) -> None:
        if plan.step == 2:
            raise RuntimeError("device lost")

    engine = make_engine(executor=FaultyExecutor(fault))
    engine.add_request("a", [1], GREEDY)
    engine.step()
    engine.step()
    with pytest.raises(ExecutorFailed, match=r"null failed.*device lost"):
        engine.step()
    assert not engine.has_unfinished_requests()
    assert engine.stats().requests_finished_total == {"error": 1}
    with pytest.raises(EngineClosed, match="device lost"):
        engine.add_request("b", [1], GREEDY)


def test_closing_aborts_what_runs_and_refuses_what_comes() -> None:
    """Every request gets a last output; twice is no error."""
    engine = make_engine()
    engine.add_request("a", [1], GREEDY)
    engine.step()
    (output,) = engine.close()
    assert output.finished
    assert output.outputs[0].finish_reason is FinishReason.ABORT
    assert engine.close() == []
    assert not engine.has_unfinished_requests()
    with pytest.raises(EngineClosed, match="closed"):
        engine.add_request("b", [1], GREEDY)


def test_a_draw_that_is_impossible_ends_its_own_request_alone() -> None:
    """A processor that raises costs its request, not the neighbour's answer."""

    class Raises:
        """Fails for requests that ask for ``top_k=3``."""

        def applies_to(self, request: GenerateRequest) -> bool:
            """Whether the request is marked."""
            return request.sampling_params.top_k == 3

        def apply(self, *_arguments: object) -> None:
            """Fail."""
            raise ValueError("no such row")

    engine = make_engine(logits_processors=[Raises()])
    marked = SamplingParams(temperature=0, max_tokens=12, top_k=3)
    engine.add_request("bad", [5, 6], marked, stream=False)
    engine.add_request("good", PROMPT, GREEDY, stream=False)
    done = {}
    while engine.has_unfinished_requests():
        done |= {output.request_id: output for output in engine.step()}
    assert ids_of([done["good"]]) == [alone(PROMPT)]
    assert done["bad"].finished
    assert done["bad"].outputs[0].finish_reason is FinishReason.ERROR
    check_whole(engine)
