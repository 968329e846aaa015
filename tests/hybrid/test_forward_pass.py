"""Logits are left out where none but greedy requests take part."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybrid import FinishReason, HybridEngine, RequestOutput, SamplingParams
from hybrid.backends.interface import ForwardResult
from hybrid.backends.null.executor import NullExecutor
from hybrid.sampler.logits_processor import LogitsProcessor
from hybrid.scheduler import GenerateRequest, StepPlan
from hybrid.testing import ids_of, run
from tests.backends.sampling_executors import SelfSampling
from tests.hybrid.null_stand import VOCAB_SIZE, make_engine

PROMPTS = [[1, 2, 3], [4, 5], [6]]
GREEDY = SamplingParams(temperature=0, max_tokens=6)
LOGPROBS = SamplingParams(temperature=0, max_tokens=3, logprobs=2)


class Sparing(NullExecutor):
    """Leaves out what nobody needs; remembers every plan that it runs."""

    def __init__(
        self, change: Callable[[NDArray[np.float32]], None] = lambda _: None
    ) -> None:
        super().__init__()
        self._change = change
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Name the likeliest; give logits only where they are asked for."""
        self.plans.append(plan)
        logits = np.from_dlpack(super().execute(plan).logits)  # type: ignore[arg-type]
        self._change(logits)
        if plan.needs_logits:
            return ForwardResult(logits=logits)
        best = logits.argmax(axis=1)
        certain = np.isfinite(logits[np.arange(len(best)), best])
        return ForwardResult(likeliest_ids=np.where(certain, best, -1).tolist())

    @property
    def asked(self) -> list[bool]:
        """Whether each plan wanted logits."""
        return [plan.needs_logits for plan in self.plans]


def run_both(
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
    **options: Any,
) -> tuple[Sparing, list[RequestOutput]]:
    """Run prompts; the answers are those of an executor that gives all logits."""
    executor = Sparing()
    outputs = run(make_engine(executor=executor, **options), prompts, params)
    assert ids_of(outputs) == ids_of(run(make_engine(**options), prompts, params))
    return executor, outputs


def test_greedy_steps_need_no_logits() -> None:
    """Neither those that end a prompt nor those that decode."""
    executor, _ = run_both(PROMPTS, GREEDY)
    assert executor.asked == [False] * 6


def test_one_request_that_wants_more_is_enough() -> None:
    """For the steps that it takes part in: the others do without again."""
    executor, outputs = run_both(PROMPTS, [GREEDY, LOGPROBS, GREEDY])
    assert executor.asked == [True] * 3 + [False] * 3
    assert outputs[1].outputs[0].logprobs is not None


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.7, "seed": 1},
        {"temperature": 0.0, "n": 2},
        {"temperature": 0.0, "prompt_logprobs": 1},
        {"temperature": 0.0, "presence_penalty": 1.0},
        {"temperature": 0.0, "logit_bias": {3: 50.0}},
        {"temperature": 0.0, "min_tokens": 2, "stop_token_ids": (1,)},
    ],
)
def test_whoever_draws_otherwise_gets_logits(params: dict[str, Any]) -> None:
    """The first step at least: later samples of a greedy fork are plain requests'."""
    executor, _ = run_both(PROMPTS, SamplingParams(max_tokens=2, **params))
    assert executor.asked[0]


def test_a_chunk_of_a_prompt_asks_for_what_it_did() -> None:
    """It has no row, and takes nothing from those who have."""
    executor, _ = run_both([list(range(9)), [4]], GREEDY, max_num_batched_tokens=4)
    rows = [sum(e.num_logits_rows for e in plan.scheduled) for plan in executor.plans]
    assert rows[0] == 0
    assert executor.asked[0]
    assert not executor.asked[-1]


class OddIds(LogitsProcessor):
    """Edits the logits of one request."""

    def applies_to(self, request: GenerateRequest) -> bool:
        """Say whose."""
        return request.request_id == "odd"

    def apply(
        self,
        request: GenerateRequest,
        sample_index: int,
        output_token_ids: Sequence[int],
        row: NDArray[np.float32],
    ) -> None:
        """Rule out the even ids."""
        del request, sample_index, output_token_ids
        row[::2] = -np.inf


def _answer(engine: HybridEngine) -> dict[str, list[int]]:
    answers: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            answers[output.request_id] = list(output.outputs[0].token_ids)
    return answers


def test_a_processor_that_comes_midway_gets_its_logits() -> None:
    """From the step in which its request begins, until that has ended."""
    executor = Sparing()
    engine = make_engine(executor=executor, logits_processors=[OddIds()])
    engine.add_request("plain", {"prompt_token_ids": [1, 2]}, GREEDY)
    engine.step()
    engine.step()
    short = SamplingParams(temperature=0, max_tokens=2)
    engine.add_request("odd", {"prompt_token_ids": [3]}, short)
    answers = _answer(engine)
    assert executor.asked == [False, False, True, True, False, False]
    assert all(token_id % 2 for token_id in answers["odd"])
    assert answers["plain"] == ids_of(run(make_engine(), [[1, 2]], GREEDY))[0]


def test_an_uncertain_row_is_asked_for_again() -> None:
    """Its request ends, the one beside it goes on; copies and news come once."""

    def spoil(logits: NDArray[np.float32]) -> None:
        if len(logits) == len(PROMPTS):
            logits[1] = np.nan

    executor = Sparing(spoil)
    outputs = run(make_engine(executor=executor), PROMPTS, GREEDY)
    reasons = [output.outputs[0].finish_reason for output in outputs]
    assert reasons == [FinishReason.LENGTH, FinishReason.ERROR, FinishReason.LENGTH]
    assert "nan" in (outputs[1].error or "")
    assert executor.asked == [False, True] + [False] * 5
    first, again = executor.plans[:2]
    assert first.step == again.step
    assert first.scheduled == again.scheduled
    assert (again.block_copies, again.finished, again.preempted) == ((), (), ())


def test_an_id_that_no_tokenizer_knows_is_looked_for_again() -> None:
    """The highest of those that it knows is taken, as with logits."""
    executor, outputs = run_both(PROMPTS, GREEDY, num_valid_ids=VOCAB_SIZE // 2)
    drawn = [token_id for ids in ids_of(outputs) for token_id in ids]
    assert max(drawn) < VOCAB_SIZE // 2
    assert len(executor.plans) > 6
    assert {True, False} == set(executor.asked)


def test_whoever_samples_itself_is_not_told() -> None:
    """What it gives are tokens either way."""
    told: list[bool] = []

    class Listening(SelfSampling):
        def execute(self, plan: StepPlan) -> ForwardResult:
            told.append(plan.needs_logits)
            return super().execute(plan)

    run(make_engine(executor=Listening()), PROMPTS, GREEDY)
    assert told == [True] * 6
