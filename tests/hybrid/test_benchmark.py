"""A benchmark: who is asked when, what is refused, what becomes of the processes."""

import os
import signal
from typing import Any

import pytest

from hybrid.bench import Benchmark, EngineChoice, Workload, benchmark
from hybrid.bench.engine_process import EngineProcess
from hybrid.scheduler import ConfigError, EngineFailed
from tests.hybrid.bench_stand import ScriptedProcess, make_facts

NULL = EngineChoice("null")
WORK = Workload(2, 6, 4)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedProcess]:
    """Engines that do nothing but note what they are asked."""
    fresh = type("ScriptedProcess", (ScriptedProcess,), {"calls": [], "options": []})
    monkeypatch.setattr(benchmark, "EngineProcess", fresh)
    return fresh


def test_rounds_of_engines_take_turns(scripted: type[ScriptedProcess]) -> None:
    """A B, A B, A B for each workload, with the same prompts in a round."""
    choices = [EngineChoice("a"), EngineChoice("b")]
    work = [WORK, Workload(1, 6, 4)]
    Benchmark(choices, work, num_rounds=2).run()
    assert scripted.calls == [
        (label, workload, seed)
        for workload in work
        for seed in (0, 1, 2)
        for label in ("a", "b")
    ]


def test_the_first_round_warms_up(scripted: type[ScriptedProcess]) -> None:
    """It counts for nothing: its 1,000 seconds are in no figure."""
    (measured,) = Benchmark([NULL], [WORK], num_rounds=2).run().measurements
    assert scripted.calls
    assert measured.num_rounds == 2
    assert measured.total_tokens_per_s.max == 8.0
    assert measured.total_tokens_per_s.min == 4.0
    assert measured.kv_bytes == 2 * 1024


def test_options_reach_every_engine(scripted: type[ScriptedProcess]) -> None:
    """Prefixes are not shared, and a batch above the usual limit still runs at once."""
    Benchmark([NULL], [Workload(300, 1, 1)], options={"dtype": "float32"})
    scripted.facts = make_facts(num_kv_blocks=1000)
    Benchmark([NULL], [Workload(300, 1, 1)], options={"dtype": "float32"}).run()
    (options,) = scripted.options
    assert options["dtype"] == "float32"
    assert options["max_num_seqs"] == 300
    assert options["enable_prefix_caching"] is False


def test_progress_is_told(scripted: type[ScriptedProcess]) -> None:
    """One call an engine, one a workload."""
    told: list[tuple[str, int, int]] = []
    Benchmark([NULL], [WORK], num_rounds=1).run(lambda *call: told.append(call))
    assert scripted.calls
    assert told == [("load", 1, 1), ("workloads", 1, 1)]


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (Workload(1, 4000, 97), "context of 4097 tokens, null has 4096"),
        (Workload(65, 8, 8), "needs 65 KV blocks, null has 64"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_round(
    scripted: type[ScriptedProcess], work: Workload, message: str
) -> None:
    """Truncated or queued requests would be figures of something else."""
    with pytest.raises(ConfigError, match=message):
        Benchmark([NULL], [WORK, work]).run()
    assert not scripted.calls


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([NULL], [Workload(0, 1, 1)]), "batch is 0"),
        (([NULL], [Workload(1, 0, 1)]), "input_tokens is 0"),
        (([NULL], [Workload(1, 1, 0)]), "output_tokens is 0"),
        (([NULL, NULL], [WORK]), "executor null is given twice"),
        (([NULL], [WORK, WORK]), "workload .* is given twice"),
        (([], [WORK]), "no executor"),
        (([NULL], []), "no workload"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(arguments: Any, message: str) -> None:
    """Before anything is loaded; the message names the number."""
    with pytest.raises(ConfigError, match=message):
        Benchmark(*arguments)


def test_rounds_are_counted_from_one() -> None:
    """No round, no figure."""
    with pytest.raises(ConfigError, match="rounds is 0"):
        Benchmark([NULL], [WORK], num_rounds=0)


def test_an_engine_runs_in_a_process_of_its_own() -> None:
    """It loads, runs a round, and is gone afterwards."""
    with EngineProcess(EngineChoice("null", {"vocab_size": 64}), {}) as engine:
        assert engine.facts.executor == "null"
        assert engine.facts.vocab_size == 64
        assert engine.facts.kv_block_bytes == 2 * 16 * 4
        run = engine.run(WORK, seed=0)
        assert len(run.gaps_s) == 6
        process = engine._process
        assert process.pid != os.getpid()
    assert process.exitcode == 0


def test_an_interrupt_does_not_wait_for_a_round() -> None:
    """Whatever ends the block early ends the process at once."""
    engine = EngineProcess(NULL, {})
    with pytest.raises(KeyboardInterrupt), engine:
        raise KeyboardInterrupt
    assert engine._process.exitcode == -signal.SIGKILL


def test_an_engine_that_cannot_be_loaded_says_why() -> None:
    """The reason comes from the child, with its label."""
    with pytest.raises(EngineFailed, match=r"null:wrong=1: .*unknown option 'wrong'"):
        EngineProcess(EngineChoice.parse("null:wrong=1"), {})


def test_a_failed_round_says_why() -> None:
    """An answer that the context cuts short is no figure; the parent tells of it."""
    engine = EngineProcess(NULL, {"max_model_len": 8})
    with engine, pytest.raises(EngineFailed, match=r"null: 2 x .* have 4 tokens"):
        engine.run(WORK, seed=0)


def test_a_killed_engine_is_noticed() -> None:
    """As the kernel does when memory runs out; the exit code is told."""
    with EngineProcess(NULL, {}) as engine:
        assert engine._process.pid is not None
        os.kill(engine._process.pid, signal.SIGKILL)
        with pytest.raises(EngineFailed, match=r"process died \(exit code -9\)"):
            engine.run(WORK, seed=0)
