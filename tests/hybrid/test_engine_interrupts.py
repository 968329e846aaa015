"""Faults between the lines of a step: interrupts, broken parts, bad neighbours."""

from collections.abc import Sequence

import pytest

from hybrid import (
    EngineClosed,
    EngineFailed,
    InvalidRequest,
    SamplingFailed,
    SamplingParams,
)
from hybrid.output_processor import OutputProcessor
from hybrid.scheduler import GenerateRequest, SchedulerStats, StepPlan
from hybrid.testing import check_whole, ids_of, run
from tests.hybrid.null_stand import FaultyExecutor, make_engine

GREEDY = SamplingParams(temperature=0, max_tokens=12)
PROMPT = [1, 2, 3]


def alone(prompt: Sequence[int]) -> list[int]:
    """The greedy answer of a fresh engine."""
    return ids_of(run(make_engine(), [list(prompt)], GREEDY))[0]


def test_an_interrupted_step_costs_its_requests_and_nothing_else() -> None:
    """After Ctrl-C in mid-step the pool is whole and the engine answers on."""

    def fault(plan: StepPlan) -> None:
        if plan.step == 3:
            raise KeyboardInterrupt

    engine = make_engine(executor=FaultyExecutor(fault))
    params = SamplingParams(temperature=0, max_tokens=12, n=3)
    engine.add_request("a", PROMPT, params)
    engine.add_request("b", [7, 8], GREEDY)
    for _ in range(3):
        engine.step()
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    check_whole(engine)
    assert engine.stats().requests_finished_total == {"abort": 2}
    assert ids_of(run(engine, [PROMPT], GREEDY)) == [alone(PROMPT)]


def test_a_fault_after_the_step_loses_no_token_in_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine that no longer knows what it answered has ended."""
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    engine.step()

    def broken(*_arguments: object, **_keywords: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(OutputProcessor, "process", broken)
    with pytest.raises(EngineFailed, match="lost"):
        engine.step()
    with pytest.raises(EngineClosed, match="lost"):
        engine.add_request("b", PROMPT, GREEDY)


@pytest.mark.parametrize("priority", ["high", 1.5, True, None])
def test_a_priority_that_is_no_integer_is_refused(priority: object) -> None:
    """It never meets the other requests' priorities."""
    engine = make_engine()
    with pytest.raises(InvalidRequest, match="priority is"):
        engine.add_request("a", PROMPT, GREEDY, priority=priority)
    check_whole(engine)


def test_a_processor_that_cannot_say_whether_it_applies_costs_one_request() -> None:
    """The request is refused, its neighbour runs."""

    class Undecided:
        """Raises for requests that ask for ``top_k=3``."""

        def applies_to(self, request: GenerateRequest) -> bool:
            """Fail for the marked."""
            if request.sampling_params.top_k == 3:
                raise ValueError("cannot tell")
            return False

        def apply(self, *_arguments: object) -> None:
            """Never called."""

    engine = make_engine(logits_processors=[Undecided()])
    engine.add_request("good", PROMPT, GREEDY, stream=False)
    marked = SamplingParams(temperature=0, max_tokens=12, top_k=3)
    with pytest.raises(SamplingFailed, match="cannot tell"):
        engine.add_request("bad", PROMPT, marked)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert ids_of(outputs) == [alone(PROMPT)]
    check_whole(engine)


def test_an_idle_engine_checks_its_pool_but_not_all_the_time() -> None:
    """The check walks every block: once when idle, then not for a minute."""
    now_s = [1000.0]
    engine = make_engine(clock=lambda: now_s[0])
    checks = []
    engine.scheduler.check_integrity = lambda: checks.append(now_s[0])
    for at_s in (1000.0, 1030.0, 1061.0):
        now_s[0] = at_s
        engine.add_request("a", PROMPT, GREEDY)
        while engine.has_unfinished_requests():
            engine.step()
    assert checks == [1000.0, 1061.0]


def test_a_busy_engine_is_seldom_asked_whether_it_is_idle() -> None:
    """Its gauges are read once a second, not at each step; later it is checked."""
    now_s = [1000.0]
    engine = make_engine(clock=lambda: now_s[0])
    checks: list[float] = []
    reads: list[float] = []
    read = engine.scheduler.stats
    engine.scheduler.check_integrity = lambda: checks.append(now_s[0])  # type: ignore[method-assign]
    engine.add_request("a", PROMPT, SamplingParams(temperature=0, max_tokens=40))
    engine.step()
    # Of three steps one at most begins a block, for which the pool is looked at.

    def stats() -> SchedulerStats:
        reads.append(now_s[0])
        return read()

    engine.scheduler.stats = stats  # type: ignore[method-assign]
    now_s[0] = 1100.0
    for _ in range(3):
        engine.step()
    assert checks == [1000.0]
    assert len(reads) <= 2
    now_s[0] = 1101.5
    engine.abort("a")
    engine.add_request("b", PROMPT, GREEDY)
    engine.step()
    assert checks == [1000.0, 1101.5]


def test_the_fullest_pool_is_remembered() -> None:
    """The peak is that of the step with the most slots, not the last."""
    engine = make_engine()
    peaks: list[SchedulerStats] = []
    engine.add_request("a", PROMPT, SamplingParams(temperature=0, max_tokens=20))
    engine.add_request("b", [4], SamplingParams(temperature=0, max_tokens=3))
    while engine.has_unfinished_requests():
        engine.step()
        peaks.append(engine.scheduler.stats())
    fullest = max(stats.num_allocated_slots for stats in peaks)
    assert engine.stats().kv_peak_allocated_slots >= fullest
