"""An executor that remembers the plans that another one runs."""

from hybrid.backends.checkpoint.model_source import ModelSource
from hybrid.backends.interface import (
    Capabilities,
    Executor,
    ExecutorConfig,
    ForwardResult,
    KVSpec,
    ModelInfo,
    ProgressCallback,
)
from hybrid.bridge import KVLayout
from hybrid.scheduler import StepPlan


class RecordingExecutor(Executor):
    """Passes everything on but ``close``, and keeps ``plans``, in order.

    An engine closes its executor, at the latest when a step fails; the one behind
    serves the next engine.
    """

    def __init__(self, executor: Executor) -> None:
        self.plans: list[StepPlan] = []
        self._executor = executor

    def capabilities(self) -> Capabilities:
        """Those of the executor behind."""
        return self._executor.capabilities()

    def load(
        self,
        model: ModelSource | None,
        config: ExecutorConfig,
        progress: ProgressCallback | None = None,
    ) -> ModelInfo:
        """Pass on."""
        return self._executor.load(model, config, progress)

    def kv_spec(self) -> KVSpec:
        """Pass on."""
        return self._executor.kv_spec()

    def allocate_kv(self, num_blocks: int) -> KVLayout | None:
        """Pass on."""
        return self._executor.allocate_kv(num_blocks)

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Remember the plan and pass it on."""
        self.plans.append(plan)
        return self._executor.execute(plan)

    def close(self) -> None:
        """Do nothing; see above."""
