"""Engines over the null executor, with any limits and, if wanted, a faulty executor."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from hybrid import HybridEngine
from hybrid.backends.interface import ExecutorConfig, ForwardResult
from hybrid.backends.null.executor import NullExecutor
from hybrid.plugins.lifecycle import LifecycleHooks
from hybrid.sampler.logits_processor import LogitsProcessor
from hybrid.sampler.sampler import Sampler
from hybrid.scheduler import PagedScheduler, SchedulerConfig, StepPlan

VOCAB_SIZE = 97


class FaultyExecutor(NullExecutor):
    """Calls ``fault`` with every plan before running it."""

    def __init__(self, fault: Callable[[StepPlan], None]) -> None:
        super().__init__()
        self._fault = fault

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Run the fault, then the plan."""
        self._fault(plan)
        return super().execute(plan)


class HeldExecutor(NullExecutor):
    """Runs its first steps, then waits until it is let go: nothing ends by itself."""

    def __init__(self, num_free_steps: int = 1) -> None:
        super().__init__()
        self._num_free_steps = num_free_steps
        self._gate = threading.Event()

    def let_go(self) -> None:
        """Run every step from here on."""
        self._gate.set()

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Wait for the gate, with an end, so that a fault is no hang."""
        if plan.step >= self._num_free_steps:
            assert self._gate.wait(timeout=60), "nobody let the executor go"
        return super().execute(plan)


def make_engine(
    *,
    block_size: int = 4,
    num_blocks: int = 32,
    executor: NullExecutor | None = None,
    seed: int = 0,
    logits_processors: Sequence[LogitsProcessor] = (),
    clock: Callable[[], float] = time.monotonic,
    num_valid_ids: int | None = None,
    hooks: LifecycleHooks | None = None,
    **limits: Any,
) -> HybridEngine:
    """An engine without text; ``limits`` are the scheduler's."""
    executor = executor or NullExecutor()
    options = {"vocab_size": VOCAB_SIZE, "max_model_len": 128}
    info = executor.load(None, ExecutorConfig(block_size=block_size, options=options))
    executor.allocate_kv(num_blocks + 1)
    defaults = {"max_model_len": info.max_model_len}
    config = SchedulerConfig(
        block_size=block_size, num_blocks=num_blocks, **(defaults | limits)
    )
    return HybridEngine(
        PagedScheduler(config),
        executor,
        sampler=Sampler(
            info.vocab_size,
            num_valid_ids=num_valid_ids,
            seed=seed,
            logits_processors=logits_processors,
        ),
        block_size=block_size,
        hooks=hooks,
        clock=clock,
    )
