"""The ``cpu`` executor: a compiled plan over quantised weights, on the CPU alone.

A checkpoint is built once into an engine directory and kept; its plan runs in our own
kernels, one native call a step. Where they were not compiled oneDNN multiplies, through
torch; what neither runs goes to the torch executor, with one log line that says why.
Imports no torch unless it comes to that.
"""

from dataclasses import replace
from typing import Final

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import (
    Capabilities,
    Executor,
    ExecutorConfig,
    ForwardResult,
    Implementation,
    KVSpec,
    ModelInfo,
    ProgressCallback,
)
from hybrid.backends.usable_cpus import num_usable_cpus
from hybrid.bridge import KVLayout, KVOrder
from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.plan import StepPlan

from .engine_directory import MANIFEST_NAME
from .implementations import Wanted, choose_runner, explain
from .options import CpuOptions
from .runner import Runner

CAPABILITIES: Final = Capabilities(
    name="cpu",
    description="compiled int8, 4-bit and float kernels for CPUs",
    devices=("cpu",),
    dtypes=("float32", "bfloat16", "float16"),
    fast_dtypes={"cpu": ("bfloat16",)},
    block_sizes=(32, 16, 64, 128, 8),
    kv_orders=(KVOrder.LAYER_FIRST,),
    model_files=(MANIFEST_NAME,),
)


class CpuExecutor(Executor):
    """Runs step plans on whoever can run the model best."""

    def __init__(self) -> None:
        self._runner: Runner | None = None

    def capabilities(self) -> Capabilities:
        """See ``Executor``."""
        return CAPABILITIES

    def implementations(self) -> tuple[Implementation, ...]:
        """Who could compute here; see ``Executor``."""
        return explain()

    def load(
        self,
        model: ModelSource | None,
        config: ExecutorConfig,
        progress: ProgressCallback | None = None,
    ) -> ModelInfo:
        """Load an engine directory, or a checkpoint, built where it was not yet."""
        options = CpuOptions.parse(config.options)
        if model is None or model.format is CheckpointFormat.GGUF:
            found = "none" if model is None else f"{model.path} ({model.format})"
            raise ConfigError(
                "executor cpu: needs a Hugging Face directory or an engine that "
                f"`hybrid build` made, got {found}"
            )
        # Nobody behind this executor knows its options, and libraries' own choice of
        # threads knows nothing of containers.
        num_threads = config.num_threads or num_usable_cpus()
        config = replace(config, options={}, num_threads=num_threads)
        self._runner = choose_runner(Wanted(model, config, options, progress))
        return self._runner.info

    def kv_spec(self) -> KVSpec:
        """Sizes from the model, memory from the machine."""
        return self._loaded().kv_spec()

    def allocate_kv(self, num_blocks: int) -> KVLayout | None:
        """See ``Executor``."""
        return self._loaded().allocate_kv(num_blocks)

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Run one step."""
        return self._loaded().run(plan)

    def close(self) -> None:
        """Drop model and pool."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _loaded(self) -> Runner:
        assert self._runner is not None, "load comes first"
        return self._runner
