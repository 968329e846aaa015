"""Lifecycle hooks: what each is told, and that none of them can harm a request."""

import dataclasses
from typing import Any

import pytest
from structlog.testing import capture_logs

from hybrid import LLM, ExecutorFailed, FinishReason, HybridEngine, SamplingParams
from hybrid.api import (
    API_VERSION,
    EngineStarted,
    EngineStopped,
    RequestOutput,
    StepFinished,
    hookimpl,
)
from hybrid.plugins.lifecycle import GuardedHook
from hybrid.plugins.manager import PluginManager
from hybrid.plugins.plugin_record import PluginSource
from hybrid.scheduler import StepPlan
from hybrid.testing import check_whole, ids_of, run
from tests.hybrid.null_stand import FaultyExecutor, make_engine
from tests.hybrid.plugin_stand import Site, site

__all__ = ["site"]  # pytest finds the fixture here

GREEDY = SamplingParams(temperature=0, max_tokens=5)
PROMPTS = [[1, 2, 3], [4, 5]]


class Watcher:
    """Writes down what it is told; raises in the hooks that it is given."""

    hybrid_api_version = API_VERSION

    def __init__(self, fault: BaseException | None = None) -> None:
        self.told: list[Any] = []
        self._fault = fault

    def _note(self, event: object) -> None:
        self.told.append(event)
        if self._fault is not None:
            raise self._fault

    @hookimpl
    def hybrid_engine_started(self, engine: EngineStarted) -> None:
        """See ``HookSpecs``."""
        self._note(engine)

    @hookimpl
    def hybrid_step_finished(self, step: StepFinished) -> None:
        """See ``HookSpecs``."""
        self._note(step)

    @hookimpl
    def hybrid_request_finished(self, output: RequestOutput) -> None:
        """See ``HookSpecs``."""
        self._note(output)

    @hookimpl
    def hybrid_engine_stopped(self, engine: EngineStopped) -> None:
        """See ``HookSpecs``."""
        self._note(engine)


def watched_engine(*plugins: object, **options: Any) -> HybridEngine:
    """An engine over the null executor that these plugins watch."""
    manager = PluginManager()
    for index, plugin in enumerate(plugins):
        manager.add(plugin, PluginSource(f"plugin-{index}", "hybrid-watch", "1.0"))
    return make_engine(hooks=manager.lifecycle_hooks(), **options)


def test_steps_requests_and_the_end_are_told_in_order() -> None:
    """Each step with its plan, each request once with its last output, one end."""
    watcher = Watcher()
    engine = watched_engine(watcher)
    outputs = run(engine, PROMPTS, GREEDY)
    engine.close()
    engine.close()
    steps = [event for event in watcher.told if isinstance(event, StepFinished)]
    assert [step.plan.step for step in steps] == [0, 1, 2, 3, 4]
    assert all(step.total_s >= 0 for step in steps)
    finished = [event for event in watcher.told if isinstance(event, RequestOutput)]
    assert finished == outputs
    assert watcher.told[-1] == EngineStopped(error=None, num_requests=2)
    assert watcher.told.count(EngineStopped(error=None, num_requests=2)) == 1


def test_requests_that_end_otherwise_are_told_as_well() -> None:
    """An abort, a close and a failing executor end requests too."""
    watcher = Watcher()
    engine = watched_engine(watcher)
    for name in ("aborted", "closed"):
        engine.add_request(name, [1], GREEDY)
    engine.step()
    engine.abort("aborted")
    engine.close()
    ended = [event for event in watcher.told if isinstance(event, RequestOutput)]
    assert [output.request_id for output in ended] == ["aborted", "closed"]
    assert {o.outputs[0].finish_reason for o in ended} == {FinishReason.ABORT}


def test_a_failed_engine_says_what_ended_it() -> None:
    """The error of ``hybrid_engine_stopped`` is what the callers were told."""

    def fault(_plan: StepPlan) -> None:
        raise RuntimeError("device lost")

    watcher = Watcher()
    engine = watched_engine(watcher, executor=FaultyExecutor(fault))
    engine.add_request("a", [1], GREEDY)
    with pytest.raises(ExecutorFailed) as caught:
        engine.step()
    engine.close()
    output, stopped = watcher.told
    assert output.outputs[0].finish_reason is FinishReason.ERROR
    assert output.error == str(caught.value)
    assert stopped == EngineStopped(error=str(caught.value), num_requests=1)
    assert "device lost" in stopped.error


class Panic(BaseException):
    """As libraries in other languages raise it."""


@pytest.mark.parametrize(
    "fault", [ValueError("no\nluck"), Panic("index"), SystemExit(3)]
)
def test_a_hook_that_raises_harms_nobody_and_is_called_once(
    fault: BaseException,
) -> None:
    """Answers are the same, the other plugin is told all, one warning a hook."""
    expected = run(make_engine(), PROMPTS, GREEDY)
    good, bad, other = Watcher(), Watcher(fault), Watcher()
    engine = watched_engine(good, bad, other)
    with capture_logs() as events:
        outputs = run(engine, PROMPTS, GREEDY)
        engine.close()
    assert ids_of(outputs) == ids_of(expected)
    check_whole(engine)
    assert good.told == other.told
    assert len(good.told) == 5 + 2 + 1
    kinds = [type(event) for event in bad.told]
    assert len(kinds) == 3
    assert set(kinds) == {StepFinished, RequestOutput, EngineStopped}
    failed = [event for event in events if event["event"] == "plugin.hook_failed"]
    assert {event["hook"] for event in failed} == {
        "hybrid_step_finished",
        "hybrid_request_finished",
        "hybrid_engine_stopped",
    }
    assert len(failed) == 3
    for event in failed:
        assert event["plugin"] == "plugin-1"
        assert type(fault).__name__ in event["reason"]
        assert "\n" not in event["reason"]


def test_a_hook_may_want_no_argument() -> None:
    """An implementation takes what it wants of the arguments."""

    class Counter:
        """Counts steps."""

        hybrid_api_version = API_VERSION
        num_steps = 0

        @hookimpl
        def hybrid_step_finished(self) -> None:
            """See ``HookSpecs``."""
            self.num_steps += 1

    counter = Counter()
    run(watched_engine(counter), PROMPTS, GREEDY)
    assert counter.num_steps == 5


def test_where_nobody_watches_no_event_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The step costs one test of truth; the event's class is not even called."""

    def refuse(*_: object) -> None:
        raise AssertionError("an event was made")

    for name in ("StepFinished", "EngineStopped"):
        monkeypatch.setattr(f"hybrid.plugins.lifecycle.{name}", refuse)
    monkeypatch.setattr(GuardedHook, "__call__", refuse)
    engine = watched_engine()
    run(engine, PROMPTS, GREEDY)
    engine.close()


def test_events_are_frozen() -> None:
    """No plugin can change what another is told, or the engine's plan."""
    watcher = Watcher()
    run(watched_engine(watcher), [[1]], GREEDY)
    for event in watcher.told:
        for field in dataclasses.fields(event):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(event, field.name, None)


def test_an_engine_from_options_tells_of_its_start(site: Site) -> None:
    """Installed plugins watch it from the first event to the last."""
    module = site.install(
        """
        told = []
        @hookimpl
        def hybrid_engine_started(engine):
            told.append(engine)
        @hookimpl
        def hybrid_engine_stopped(engine):
            told.append(engine)
        """
    )
    options = {"num_kv_blocks": 9, "block_size": 4, "plugins": ["mine"]}
    with LLM(executor="null", executor_options={"max_model_len": 64}, **options) as llm:
        llm.generate([[1, 2]], GREEDY)
    import importlib  # noqa: PLC0415 - a module made by this test

    assert importlib.import_module(module).told == [
        EngineStarted(
            model=None,
            architecture="null",
            executor="null",
            device="cpu",
            dtype="float32",
            max_model_len=64,
            block_size=4,
            num_blocks=9,
        ),
        EngineStopped(error=None, num_requests=1),
    ]


def test_each_engine_has_its_own_manager(site: Site) -> None:
    """A hook that one engine has silenced still watches the next."""
    module = site.install(
        """
        told = []
        @hookimpl
        def hybrid_step_finished(step):
            told.append(step)
            raise ValueError
        """
    )
    import importlib  # noqa: PLC0415 - a module made by this test

    for num_told in (1, 2):
        with LLM(executor="null", num_kv_blocks=9, plugins=["mine"]) as llm:
            llm.generate([[1, 2]], GREEDY)
        assert len(importlib.import_module(module).told) == num_told
