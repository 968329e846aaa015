"""Runs workloads on engines, in turns."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, Final

from hybrid.backends.interface import ProgressCallback
from hybrid.scheduler.errors import ConfigError

from .engine_choice import EngineChoice
from .engine_process import EngineProcess
from .machine import Machine
from .measurement import Measurement
from .report import Report
from .workload import Workload

_DEFAULTS: Final[Mapping[str, Any]] = {
    # Prompts are random: there is nothing to share, and no text to make.
    "enable_prefix_caching": False,
    "skip_tokenizer_init": True,
}
_MAX_NUM_SEQS: Final = 256
"""As ``EngineConfig`` has it; more only where a batch is larger."""


class Benchmark:
    """What is to be measured, checked as far as it can be before anything is loaded."""

    def __init__(
        self,
        choices: Sequence[EngineChoice],
        workloads: Sequence[Workload],
        *,
        num_rounds: int = 3,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Check the plan.

        Args:
            choices: engines to compare; a round of one follows one of another.
            workloads: each is warmed up by a round of its own that does not count.
            num_rounds: rounds that count, of every workload on every engine.
            options: keywords of ``EngineConfig`` for all engines.

        Raises:
            ConfigError: a number is below 1, an engine or workload comes twice.
        """
        for workload in workloads:
            for name in ("batch", "input_tokens", "output_tokens"):
                _check_count(name, getattr(workload, name))
        _check_count("rounds", num_rounds)
        _check_unique("executor", [choice.label for choice in choices])
        _check_unique("workload", [str(workload) for workload in workloads])
        self._choices: Final = tuple(choices)
        self._workloads: Final = tuple(workloads)
        self._num_rounds: Final = num_rounds
        most = max(workload.batch for workload in workloads)
        self._options: Final = {
            **_DEFAULTS,
            "max_num_seqs": max(_MAX_NUM_SEQS, most),
            **(options or {}),
        }

    def run(self, progress: ProgressCallback | None = None) -> Report:
        """Load every engine, run every round, unload.

        Args:
            progress: told how many engines are loaded and rounds run.

        Raises:
            ConfigError: a workload fits no engine's context or KV pool.
            EngineFailed: an engine cannot be loaded, refused a request, or died.
        """
        machine = Machine.here()
        with ExitStack() as stack:
            engines: list[EngineProcess] = []
            for choice in self._choices:
                engine = EngineProcess(choice, self._options)
                engines.append(stack.enter_context(engine))
                if progress is not None:
                    progress("load", len(engines), len(self._choices))
                for workload in self._workloads:
                    _check_fits(engine, workload)
            measurements: list[Measurement] = []
            for index, workload in enumerate(self._workloads):
                measurements += self._measure(engines, workload)
                if progress is not None:
                    progress("workloads", index + 1, len(self._workloads))
            return Report(
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                machine=machine,
                options=self._options,
                num_rounds=self._num_rounds,
                engines={engine.label: engine.facts for engine in engines},
                measurements=tuple(measurements),
            )

    def _measure(
        self, engines: Sequence[EngineProcess], workload: Workload
    ) -> list[Measurement]:
        rounds = []
        for number in range(self._num_rounds + 1):
            # The same prompts for all, new ones each round.
            runs = [engine.run(workload, seed=number) for engine in engines]
            if number:
                rounds.append(runs)
        return [
            Measurement.of(engine.label, runs, kv_bytes=_kv_bytes(engine, workload))
            for engine, runs in zip(engines, zip(*rounds, strict=True), strict=True)
        ]


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} is {value}, must be at least 1")


def _check_unique(name: str, labels: Sequence[str]) -> None:
    if not labels:
        raise ConfigError(f"there is no {name} to measure")
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"{name} {label} is given twice")


def _check_fits(engine: EngineProcess, workload: Workload) -> None:
    """Refuse what would be truncated, or wait for blocks instead of running at once."""
    facts = engine.facts
    if workload.context > facts.max_model_len:
        raise ConfigError(
            f"{workload}: a context of {workload.context} tokens, {engine.label} has "
            f"{facts.max_model_len}"
        )
    num_blocks = workload.num_kv_blocks(facts.block_size)
    if num_blocks > facts.num_kv_blocks:
        raise ConfigError(
            f"{workload}: needs {num_blocks} KV blocks, {engine.label} has "
            f"{facts.num_kv_blocks}; raise kv_cache_memory or num_kv_blocks"
        )


def _kv_bytes(engine: EngineProcess, workload: Workload) -> int:
    facts = engine.facts
    return workload.num_kv_blocks(facts.block_size) * facts.kv_block_bytes
