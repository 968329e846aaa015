"""What the executor drives: our kernels, oneDNN's, or torch."""

from typing import Protocol

from hybrid.backends.interface import ForwardResult, KVSpec, ModelInfo
from hybrid.bridge import KVLayout
from hybrid.scheduler.plan import StepPlan


class Runner(Protocol):
    """Turns step plans into logits, for one model and one thread."""

    @property
    def info(self) -> ModelInfo:
        """What was loaded."""
        ...

    def kv_spec(self) -> KVSpec:
        """Sizes of the cache, and the memory there is for it."""
        ...

    def allocate_kv(self, num_blocks: int) -> KVLayout | None:
        """Allocate the pool, null block included; see ``Executor``.

        Raises:
            ConfigError: the memory cannot be had.
        """
        ...

    def run(self, plan: StepPlan) -> ForwardResult:
        """Copy blocks and compute a step: its logits, valid until the next call."""
        ...

    def close(self) -> None:
        """Free everything. Twice is no error."""
        ...
