"""Rounds and reports made by hand, for the tests of ``hybrid.bench``."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from hybrid.bench import EngineChoice, Measurement, Report, Workload
from hybrid.bench.engine_process import EngineFacts
from hybrid.bench.machine import Machine
from hybrid.bench.round_run import RoundRun


def make_facts(**changes: Any) -> EngineFacts:
    """An engine of 64 blocks of 16 tokens, 1 KiB each."""
    values: dict[str, Any] = {
        "executor": "null",
        "dtype": "float32",
        "device": "cpu",
        "vocab_size": 512,
        "max_model_len": 4096,
        "block_size": 16,
        "num_kv_blocks": 64,
        "kv_block_bytes": 1024,
        "load_s": 0.5,
        "load_peak_rss_bytes": 2**20,
    }
    return EngineFacts(**(values | changes))


def make_run(workload: Workload, *, total_s: float = 2.0, **changes: Any) -> RoundRun:
    """A round that prefills for half of its time."""
    values: dict[str, Any] = {
        "workload": workload,
        "total_s": total_s,
        "prefill_s": total_s / 2,
        "num_prefill_tokens": workload.batch,
        "ttft_s": (total_s / 2,) * workload.batch,
        "gaps_s": (0.01,) * (workload.batch * (workload.output_tokens - 1)),
        "peak_rss_bytes": 2**20,
    }
    return RoundRun(**(values | changes))


def make_report(*measurements: Measurement) -> Report:
    """A report about engines that nobody ran."""
    return Report(
        created="2026-01-01T00:00:00+00:00",
        machine=Machine.here(),
        options={"model": "m"},
        num_rounds=1,
        engines={one.engine: make_facts() for one in measurements},
        measurements=measurements,
    )


class ScriptedProcess:
    """Takes ``EngineProcess``'s place, and notes in ``calls`` who was asked what."""

    calls: list[tuple[str, Workload, int]]
    options: list[Mapping[str, Any]]
    facts = make_facts()

    def __init__(self, choice: EngineChoice, options: Mapping[str, Any]) -> None:
        self.label = choice.label
        self.options.append(options)

    def run(self, workload: Workload, *, seed: int) -> RoundRun:
        """A round whose length is its seed, in seconds; the first takes 1,000."""
        self.calls.append((self.label, workload, seed))
        return make_run(workload, total_s=float(seed or 1000))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass
