"""The torch executor behind this one: for what no compiled kernel can run."""

from typing import Final

from hybrid.backends.checkpoint.model_source import ModelSource
from hybrid.backends.interface import (
    ExecutorConfig,
    ForwardResult,
    KVSpec,
    ModelInfo,
    ProgressCallback,
)
from hybrid.backends.pytorch.executor import TorchExecutor
from hybrid.bridge import KVLayout
from hybrid.scheduler.plan import StepPlan


class TorchRunner:
    """See ``Runner``.

    Raises:
        HybridError: as ``TorchExecutor.load`` does.
    """

    def __init__(
        self,
        source: ModelSource,
        config: ExecutorConfig,
        progress: ProgressCallback | None = None,
    ) -> None:
        self._executor: Final = TorchExecutor()
        self.info: Final[ModelInfo] = self._executor.load(source, config, progress)

    def kv_spec(self) -> KVSpec:
        """See ``Runner``."""
        return self._executor.kv_spec()

    def allocate_kv(self, num_blocks: int) -> KVLayout:
        """See ``Runner``."""
        return self._executor.allocate_kv(num_blocks)

    def run(self, plan: StepPlan) -> ForwardResult:
        """See ``Runner``."""
        return self._executor.execute(plan)

    def close(self) -> None:
        """See ``Runner``."""
        self._executor.close()
