"""Executors that break their contract: the error names them, nothing hangs or leaks."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from hybrid import (
    LLM,
    AsyncHybridEngine,
    EngineClosed,
    ExecutorFailed,
    FinishReason,
    HybridEngine,
    SamplingParams,
)
from hybrid.backends.interface import Capabilities, ForwardResult
from hybrid.backends.null import executor as null_executor
from hybrid.backends.null.executor import NullExecutor
from hybrid.scheduler import StepPlan
from hybrid.testing import check_whole, ids_of, run
from tests.hybrid.null_stand import make_engine
from tests.hybrid.serving_stand import read, serve

GREEDY = SamplingParams(temperature=0, max_tokens=6)
PROMPTS = [[1, 2, 3], [4, 5], [6]]
FAULTY_STEP = 2


class Panic(BaseException):
    """As libraries in other languages raise it."""


class TwistedExecutor(NullExecutor):
    """Gives something else for the result of one step."""

    def __init__(self, twist: Callable[[ForwardResult], Any]) -> None:
        super().__init__()
        self._twist = twist
        self.num_closed = 0

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Run the plan, twist what came out in one step."""
        result = super().execute(plan)
        twisted: ForwardResult = result
        if plan.step == FAULTY_STEP:
            twisted = self._twist(result)
        return twisted

    def close(self) -> None:
        """Count the calls."""
        super().close()
        self.num_closed += 1


class SamplingExecutor(NullExecutor):
    """Samples itself, by a rule; declares so."""

    def __init__(self, draw: Callable[[StepPlan], Any]) -> None:
        super().__init__()
        self._draw = draw

    def capabilities(self) -> Capabilities:
        """Those of the null executor, but for the sampling."""
        return replace(null_executor.CAPABILITIES, returns_logits=False)

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Ignore the model."""
        drawn: ForwardResult = self._draw(plan)
        return drawn


def logits(result: ForwardResult) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The logits of a result, as numpy sees them."""
    assert result.logits is not None
    return np.from_dlpack(result.logits)


def raises(error: BaseException) -> Callable[[ForwardResult], Any]:
    """A twist that raises."""

    def twist(_result: ForwardResult) -> None:
        raise error

    return twist


FAULTS: dict[str, tuple[Callable[[ForwardResult], Any], str]] = {
    "an exception": (raises(RuntimeError("device\nlost")), "RuntimeError: device lost"),
    "a panic": (raises(Panic("index out of bounds")), "Panic: index out of bounds"),
    "nothing": (lambda _: None, "execute gave a NoneType, must give a ForwardResult"),
    "the bare logits": (logits, "execute gave a ndarray"),
    "an empty result": (lambda _: ForwardResult(), "returned no logits, 3 rows"),
    "a row too few": (
        lambda r: ForwardResult(logits=logits(r)[1:]),
        r"shape \(2, 97\), wanted float32 of shape \(3, 97\)",
    ),
    "a column too many": (
        lambda r: ForwardResult(logits=np.pad(logits(r), ((0, 0), (0, 1)))),
        r"shape \(3, 98\)",
    ),
    "one flat row": (
        lambda r: ForwardResult(logits=logits(r).reshape(-1)),
        r"shape \(291,\)",
    ),
    "another dtype": (
        lambda r: ForwardResult(logits=logits(r).astype(np.float64)),
        "float64 logits",
    ),
    "a list": (lambda r: ForwardResult(logits=logits(r).tolist()), "__dlpack"),
    "tokens": (
        lambda _: ForwardResult(sampled_token_ids=((1,), (2,), (3,))),
        "declares returns_logits=True and returned tokens",
    ),
    "logits and tokens": (
        lambda r: replace(r, sampled_token_ids=((1,), (2,), (3,))),
        "declares returns_logits=True and returned tokens",
    ),
}
each_fault = pytest.mark.parametrize("fault", FAULTS)


def check_ended(engine: HybridEngine, reason: str) -> None:
    """The engine has ended, its blocks are free, and it says why to newcomers."""
    assert not engine.has_unfinished_requests()
    check_whole(engine)
    assert engine.stats().requests_finished_total == {"error": len(PROMPTS)}
    with pytest.raises(EngineClosed, match=f"(?s)executor null failed.*{reason}"):
        engine.add_request("late", [1], GREEDY)
    assert engine.close() == []


@each_fault
def test_a_faulty_executor_ends_its_engine_by_name(fault: str) -> None:
    """The step raises, every request has ended, every block is free."""
    twist, reason = FAULTS[fault]
    executor = TwistedExecutor(twist)
    engine = make_engine(executor=executor)
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), prompt, GREEDY)
    for _ in range(FAULTY_STEP):
        engine.step()
    with (
        capture_logs() as events,
        pytest.raises(ExecutorFailed, match=f"executor null failed.*{reason}"),
    ):
        engine.step()
    check_ended(engine, reason)
    assert executor.num_closed == 1
    (event,) = [event for event in events if event["event"] == "engine.failed"]
    assert event["num_requests_ended"] == len(PROMPTS)


@each_fault
def test_a_faulty_executor_ends_the_offline_call(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """``generate`` raises the same, a second one says that the engine has ended."""
    twist, reason = FAULTS[fault]
    monkeypatch.setattr(null_executor, "NullExecutor", lambda: TwistedExecutor(twist))
    with LLM(
        executor="null", num_kv_blocks=32, executor_options={"vocab_size": 97}
    ) as llm:
        with pytest.raises(ExecutorFailed, match=f"executor null failed.*{reason}"):
            llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        with pytest.raises(EngineClosed, match="executor null failed"):
            llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        check_whole(llm.llm_engine)


# Those whose message does not depend on how many requests share the step.
@pytest.mark.parametrize(
    "fault", ["an exception", "a panic", "nothing", "another dtype", "tokens"]
)
def test_a_faulty_executor_ends_every_stream(fault: str) -> None:
    """Each reader is told, whoever comes later is refused, closing hangs on nothing."""
    twist, reason = FAULTS[fault]
    engine = make_engine(executor=TwistedExecutor(twist))

    async def body(serving: AsyncHybridEngine) -> None:
        reads = (read(serving, prompt, GREEDY) for prompt in PROMPTS)
        for result in await asyncio.gather(*reads, return_exceptions=True):
            assert isinstance(result, (ExecutorFailed, EngineClosed))
            assert "executor null failed" in str(result)
            assert reason in str(result)
        with pytest.raises(EngineClosed, match="executor null failed"):
            await read(serving, [1], GREEDY)
        assert not serving.is_running

    serve(engine, body)
    check_whole(engine)


def not_a_number(result: ForwardResult) -> ForwardResult:
    """NaN in the row of the first request alone."""
    changed = logits(result).copy()
    changed[0, 3] = np.nan
    return ForwardResult(logits=changed)


def test_a_row_that_is_not_finite_ends_its_own_request_alone() -> None:
    """The event names the executor, the neighbours' answers are what they were."""
    expected = ids_of(run(make_engine(), PROMPTS, GREEDY))
    engine = make_engine(executor=TwistedExecutor(not_a_number))
    with capture_logs() as events:
        outputs = run(engine, PROMPTS, GREEDY)
    assert outputs[0].outputs[0].finish_reason is FinishReason.ERROR
    assert ids_of(outputs[1:]) == expected[1:]
    check_whole(engine)
    (event,) = [event for event in events if event["event"] == "request.failed"]
    assert event["reason"] == outputs[0].error
    assert re.search(r"highest logit is nan.*executor null", event["reason"])
    assert outputs[1].error is None


def token(value: Any) -> Callable[[StepPlan], ForwardResult]:
    """A rule that samples one value for everyone."""
    return lambda plan: ForwardResult(
        sampled_token_ids=tuple((value,) * e.num_samples for e in plan.scheduled)
    )


def test_an_executor_that_samples_itself_is_believed() -> None:
    """Its tokens are the answer."""
    outputs = run(make_engine(executor=SamplingExecutor(token(7))), PROMPTS, GREEDY)
    assert ids_of(outputs) == [[7] * 6] * 3


@pytest.mark.parametrize(
    ("draw", "reason"),
    [
        (token(97), "sampled 97, must be an id below 97"),
        (token(-1), "sampled -1, must be"),
        (token(1.0), "sampled 1.0, must be"),
        (token(None), "sampled None, must be"),
        (lambda _: ForwardResult(sampled_token_ids=()), "sampled for 0 entries"),
        (
            lambda plan: ForwardResult(sampled_token_ids=((),) * len(plan.scheduled)),
            "sampled 0 tokens, the plan wants 1",
        ),
        (lambda _: ForwardResult(), "returns_logits=False and returned no tokens"),
        (
            lambda _: ForwardResult(logits=np.zeros((3, 97), np.float32)),
            "returns_logits=False and returned logits",
        ),
    ],
)
def test_tokens_that_cannot_be_end_the_engine_by_name(
    draw: Callable[[StepPlan], Any], reason: str
) -> None:
    """Neither a detokeniser nor a client ever sees them."""
    engine = make_engine(executor=SamplingExecutor(draw))
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), prompt, GREEDY)
    with pytest.raises(ExecutorFailed, match=f"executor null failed.*{reason}"):
        engine.step()
    check_ended(engine, reason)
