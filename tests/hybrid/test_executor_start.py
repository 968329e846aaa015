"""An executor's first and last calls: what breaks there names it and leaks nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from hybrid import LLM, ExecutorFailed, SamplingParams
from hybrid.backends.null.executor import NullExecutor
from hybrid.testing import check_whole
from tests.hybrid.null_stand import make_engine

GREEDY = SamplingParams(temperature=0, max_tokens=6)


def fail() -> None:
    """Break with a message of two lines."""
    raise RuntimeError("no\nmemory")


@pytest.mark.parametrize("method", ["load", "kv_spec", "allocate_kv"])
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (fail, "failed in {}: RuntimeError: no memory"),
        (lambda: 3, "gave a int from {}"),
    ],
)
def test_an_executor_that_breaks_at_start_is_named_and_closed(
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    answer: Callable[..., Any],
    reason: str,
) -> None:
    """Whatever breaks while an engine is built, its executor is freed."""
    closed = []

    def broken(*_: object) -> Any:
        return answer()

    broken.__name__ = method
    monkeypatch.setattr(NullExecutor, method, broken)
    monkeypatch.setattr(NullExecutor, "close", lambda _: closed.append(1))
    with pytest.raises(ExecutorFailed, match=f"executor null {reason.format(method)}"):
        LLM(executor="null", num_kv_blocks=8)
    assert closed == [1]


@pytest.mark.parametrize(
    ("cell_bytes", "gives_layout", "reason"),
    [
        (None, False, "gave None from allocate_kv, .* no cell_bytes"),
        (64, True, "gave a KVLayout from allocate_kv, .* cell_bytes=64"),
        (64, False, None),
    ],
)
def test_a_pool_has_a_layout_unless_its_cells_fit_none(
    monkeypatch: pytest.MonkeyPatch,
    cell_bytes: int | None,
    gives_layout: bool,
    reason: str | None,
) -> None:
    """What ``kv_spec`` says and what ``allocate_kv`` gives belong together."""
    spec = replace(NullExecutor().kv_spec(), cell_bytes=cell_bytes)
    monkeypatch.setattr(NullExecutor, "kv_spec", lambda _: spec)
    if not gives_layout:
        allocate = NullExecutor.allocate_kv

        def allocate_silently(self: NullExecutor, num_blocks: int) -> None:
            allocate(self, num_blocks)

        allocate_silently.__name__ = "allocate_kv"
        monkeypatch.setattr(NullExecutor, "allocate_kv", allocate_silently)
    if reason is None:
        LLM(executor="null", num_kv_blocks=8).close()
        return
    with pytest.raises(ExecutorFailed, match=f"executor null {reason}"):
        LLM(executor="null", num_kv_blocks=8)


def test_an_executor_that_cannot_close_hides_nothing() -> None:
    """The outputs of closing come back; why it could not is a warning."""

    class Stuck(NullExecutor):
        """Cannot be closed."""

        def close(self) -> None:
            """Fail."""
            raise OSError("busy")

    engine = make_engine(executor=Stuck())
    engine.add_request("a", [1], GREEDY)
    with capture_logs() as events:
        outputs = engine.close()
    assert [output.request_id for output in outputs] == ["a"]
    (event,) = [e for e in events if e["event"] == "executor.close_failed"]
    assert (event["executor"], event["reason"]) == ("Stuck", "OSError: busy")
    check_whole(engine)
