"""Schedulers that break their contract: the error names them, every request ends."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from hybrid import EngineClosed, EngineFailed, ExecutorFailed, SamplingParams
from hybrid.backends.null.executor import NullExecutor
from hybrid.scheduler import StepPlan
from tests.hybrid.null_stand import make_engine

GREEDY = SamplingParams(temperature=0, max_tokens=6)
EMPTY = StepPlan(0, (), 0, (), (), ())


def broken(*_: object) -> Any:
    """Raise, whatever is asked."""
    raise KeyError("lost")


def idle(*_: object) -> StepPlan:
    """Schedule nothing, whatever waits."""
    return EMPTY


@pytest.mark.parametrize(
    ("methods", "reason"),
    [
        ({"schedule": broken}, "KeyError: 'lost'"),
        ({"schedule": idle}, "requests wait, and it plans none of them"),
        ({"update": broken}, "KeyError: 'lost'"),
        ({"update": broken, "abort": broken}, "KeyError: 'lost'"),
    ],
)
def test_a_scheduler_that_fails_ends_the_engine_by_name(
    monkeypatch: pytest.MonkeyPatch, methods: dict[str, Any], reason: str
) -> None:
    """Every request has ended, the executor is freed, nobody waits for ever."""
    closed: list[int] = []
    monkeypatch.setattr(NullExecutor, "close", lambda _: closed.append(1))
    engine = make_engine()
    engine.add_request("a", [1, 2], GREEDY)
    engine.add_request("b", [3], GREEDY)
    for name, method in methods.items():
        monkeypatch.setattr(engine.scheduler, name, method)
    with pytest.raises(
        EngineFailed, match=f"scheduler PagedScheduler failed .*{reason}"
    ) as caught:
        engine.step()
    assert not isinstance(caught.value, ExecutorFailed)
    assert closed == [1]
    assert engine.stats().requests_finished_total == {"error": 2}
    assert not engine.has_unfinished_requests()
    with pytest.raises(EngineClosed, match="PagedScheduler failed"):
        engine.add_request("c", [1], GREEDY)


def test_a_scheduler_that_cannot_abort_does_not_hide_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Why the engine ended is raised; that its blocks are lost is a warning."""
    engine = make_engine()
    engine.add_request("a", [1], GREEDY)
    monkeypatch.setattr(engine.scheduler, "abort", broken)
    with capture_logs() as events:
        (output,) = engine.close()
    assert output.request_id == "a"
    (event,) = [e for e in events if e["event"] == "scheduler.abort_failed"]
    assert event["reason"] == "KeyError: 'lost'"
