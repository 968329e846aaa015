"""Whatever part of an engine raises whatever: the right one is named, nothing is lost.

Panics are ``BaseException``s, as libraries in other languages raise them.
"""

from typing import Any

import pytest
from structlog.testing import capture_logs

from hybrid import (
    LLM,
    EngineClosed,
    EngineFailed,
    ExecutorFailed,
    FinishReason,
    HybridEngine,
    SamplingParams,
)
from hybrid.api import API_VERSION, EngineStopped, RequestOutput, hookimpl
from hybrid.backends.interface import ForwardResult
from hybrid.backends.null import executor as null_executor
from hybrid.backends.null.executor import NullExecutor
from hybrid.output_processor import OutputProcessor
from hybrid.plugins.manager import PluginManager
from hybrid.plugins.plugin_record import PluginSource
from hybrid.scheduler import GenerateRequest, StepPlan
from hybrid.testing import check_whole, ids_of, run
from tests.hybrid.null_stand import make_engine

GREEDY = SamplingParams(temperature=0, max_tokens=6)
SHORT = SamplingParams(temperature=0, max_tokens=1)
PROMPTS = [[1, 2, 3], [4, 5], [6]]


class Panic(BaseException):
    """No ``Exception``."""


def panic(*_: object, **__: object) -> Any:
    """Raise it, whatever is asked."""
    raise Panic("index")


def engine_with_requests(**options: Any) -> HybridEngine:
    """An engine with one request per prompt, called 0, 1, 2."""
    engine = make_engine(**options)
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), prompt, GREEDY)
    return engine


def check_ended(engine: HybridEngine) -> None:
    """The engine has ended by an error, every request with it."""
    assert not engine.has_unfinished_requests()
    with pytest.raises(EngineClosed, match="failed and the engine has ended"):
        engine.add_request("late", [1], GREEDY)


SCHEDULER_CALLS = {
    "schedule": lambda engine: engine.step(),
    "update": lambda engine: engine.step(),
    "abort": lambda engine: engine.abort("0"),
    "has_unfinished": lambda engine: engine.has_unfinished_requests(),
    "stats": lambda engine: engine.stats(),
    "reset_prefix_cache": lambda engine: engine.reset_prefix_cache(),
}


@pytest.mark.parametrize("method", SCHEDULER_CALLS)
def test_a_scheduler_that_panics_ends_the_engine_by_its_name(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """In every method that the engine calls, a step or none."""
    engine = engine_with_requests()
    monkeypatch.setattr(engine.scheduler, method, panic)
    with pytest.raises(
        EngineFailed, match=r"scheduler PagedScheduler failed .*: Panic: index"
    ) as caught:
        SCHEDULER_CALLS[method](engine)
    assert not isinstance(caught.value, ExecutorFailed)
    assert [output.request_id for output in caught.value.outputs] == ["0", "1", "2"]
    assert {output.error for output in caught.value.outputs} == {str(caught.value)}
    check_ended(engine)


def test_one_abort_that_panics_keeps_no_other_requests_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is freed by itself, and the plan given back, whatever became of another."""
    engine = engine_with_requests(executor=Failing())
    abort, aborted = engine.scheduler.abort, []

    def abort_others(request_id: str) -> bool:
        if request_id == "0":
            raise Panic("index")
        aborted.append(request_id)
        return abort(request_id)

    monkeypatch.setattr(engine.scheduler, "abort", abort_others)
    with (
        capture_logs() as events,
        pytest.raises(ExecutorFailed, match="device lost") as caught,
    ):
        engine.step()
    assert aborted == ["1", "2"]
    assert len(caught.value.outputs) == 3
    assert [e["event"] for e in events].count("scheduler.abort_failed") == 1
    abort("0")
    check_whole(engine)


class Failing(NullExecutor):
    """Loses its device in a step, and panics when it is closed."""

    def execute(self, _plan: StepPlan) -> ForwardResult:
        """Fail."""
        raise RuntimeError("device lost")

    def close(self) -> None:
        """Fail otherwise."""
        raise Panic("index")


class Watcher:
    """Keeps what it is told, and what the engine looked like then."""

    hybrid_api_version = API_VERSION

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.engine: HybridEngine | None = None
        self.free_blocks: list[int] = []

    @hookimpl
    def hybrid_request_finished(self, output: RequestOutput) -> None:
        """See ``HookSpecs``."""
        assert self.engine is not None
        self.told.append(output)
        self.free_blocks.append(self.engine.scheduler.stats().num_free_blocks)

    @hookimpl
    def hybrid_engine_stopped(self, engine: EngineStopped) -> None:
        """See ``HookSpecs``."""
        self.told.append(engine)


def watched(watcher: Watcher, **options: Any) -> HybridEngine:
    """An engine with requests that one plugin watches."""
    manager = PluginManager()
    manager.add(watcher, PluginSource("watcher", "hybrid-watch", "1.0"))
    engine = engine_with_requests(hooks=manager.lifecycle_hooks(), **options)
    watcher.engine = engine
    return engine


def test_an_executor_that_cannot_be_closed_hides_no_cause() -> None:
    """Why the engine ended is raised, and told to who watches."""
    watcher = Watcher()
    engine = watched(watcher, executor=Failing())
    with pytest.raises(ExecutorFailed, match="device lost") as caught:
        engine.step()
    stopped = EngineStopped(error=str(caught.value), num_requests=3)
    assert watcher.told == [*caught.value.outputs, stopped]
    check_ended(engine)


def test_requests_are_told_of_when_their_blocks_are_free() -> None:
    """At the end of a step, or of the engine: a hook cannot come between."""
    watcher = Watcher()
    engine = watched(watcher)
    run_to_end = iter(range(100))
    while engine.has_unfinished_requests() and next(run_to_end) < 99:
        engine.step()
    engine.add_request("late", [9], GREEDY)
    engine.step()
    engine.close()
    assert len(watcher.told) == 3 + 1 + 1
    assert set(watcher.free_blocks) == {32}


class Choosy:
    """Panics, or leaves nothing, for requests that ask for ``top_k=3``."""

    def __init__(self, *, leaves_nothing: bool = False) -> None:
        self._leaves_nothing = leaves_nothing

    def applies_to(self, request: GenerateRequest) -> bool:
        """To the marked."""
        return request.sampling_params.top_k == 3

    def apply(
        self, _request: object, _sample: object, _outputs: object, row: Any
    ) -> None:
        """Fail either way."""
        if not self._leaves_nothing:
            raise Panic("index")
        row[:] = -float("inf")


@pytest.mark.parametrize("leaves_nothing", [True, False])
def test_a_processor_at_fault_ends_its_request_and_no_executor_is_named(
    *, leaves_nothing: bool
) -> None:
    """The neighbours' answers are what they were."""
    expected = ids_of(run(make_engine(), PROMPTS, GREEDY))
    processor = Choosy(leaves_nothing=leaves_nothing)
    engine = engine_with_requests(logits_processors=[processor])
    marked = SamplingParams(temperature=0, top_k=3)
    engine.add_request("marked", [7], marked, stream=False)
    outputs = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
    failed = outputs.pop("marked")
    assert failed.outputs[0].finish_reason is FinishReason.ERROR
    assert "logits processor Choosy" in (failed.error or "")
    assert "executor" not in (failed.error or "")
    assert ids_of(list(outputs.values())) == expected


def test_output_processing_that_fails_is_not_the_schedulers_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor the executor's: a tokenizer of a model's own may have raised."""
    engine = engine_with_requests()
    monkeypatch.setattr(OutputProcessor, "process", panic)
    with pytest.raises(EngineFailed, match=r"^output processing failed .*Panic: index"):
        engine.step()
    check_ended(engine)


def test_answers_that_finished_in_the_failing_step_are_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They come with the error, whole, beside those that it ended."""
    engine = make_engine()
    engine.add_request("done", [1, 2, 3], SHORT)
    engine.add_request("cut", [4, 5], GREEDY)
    process = OutputProcessor.process

    def process_and_fail(self: OutputProcessor, *args: Any, **keywords: Any) -> Any:
        process(self, *args, **keywords)
        raise ValueError("late")

    monkeypatch.setattr(OutputProcessor, "process", process_and_fail)
    with pytest.raises(EngineFailed, match="ValueError: late") as caught:
        engine.step()
    done, cut = caught.value.outputs
    assert done.outputs[0].finish_reason is FinishReason.LENGTH
    assert done.error is None
    assert cut.outputs[0].finish_reason is FinishReason.ERROR
    assert cut.error == str(caught.value)


def test_what_had_finished_comes_with_the_error_of_an_offline_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The whole batch is accounted for, though ``generate`` raises."""

    class LateFailing(NullExecutor):
        """Fails in its third step."""

        def execute(self, plan: StepPlan) -> ForwardResult:
            """Run two steps."""
            if plan.step == 2:
                raise RuntimeError("device lost")
            return super().execute(plan)

    monkeypatch.setattr(null_executor, "NullExecutor", LateFailing)
    with (
        LLM(executor="null", num_kv_blocks=32) as llm,
        pytest.raises(ExecutorFailed) as caught,
    ):
        llm.generate(PROMPTS, [SHORT, GREEDY, GREEDY], use_tqdm=False)
    assert [output.error is None for output in caught.value.outputs] == [
        True,
        False,
        False,
    ]


def test_a_broken_pool_is_found_before_the_next_step_and_costs_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What had finished was returned; the scheduler is named."""
    now_s = [0.0]
    engine = make_engine(clock=lambda: now_s[0])
    outputs = run(engine, PROMPTS, GREEDY)
    assert len(outputs) == len(PROMPTS)
    now_s[0] = 61.0
    monkeypatch.setattr(engine.scheduler, "check_integrity", panic)
    engine.add_request("next", [1], GREEDY)
    with pytest.raises(EngineFailed, match=r"scheduler PagedScheduler failed .*Panic"):
        engine.step()
