"""The oneDNN fallback as an executor of its own, whatever this machine has compiled."""

from pathlib import Path
from typing import Final

import pytest
import torch

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.cpu.onednn_product import check_int8_products
from hybrid.backends.cpu.onednn_runner import OneDNNRunner
from hybrid.backends.cpu.options import CpuOptions
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
from hybrid.scheduler import (
    ConfigError,
    GenerateRequest,
    SamplingParams,
    ScheduledRequest,
    StepPlan,
    UnsupportedFeature,
)
from hybrid.testing import LoadedExecutor, load_executor


def _refusal() -> str | None:
    try:
        check_int8_products()
    except UnsupportedFeature as error:
        return str(error)
    return None


REFUSAL: Final = _refusal()
"""Why there are no 8-bit products here; ``None``: there are."""
needs_int8: Final = pytest.mark.skipif(REFUSAL is not None, reason=str(REFUSAL))


class OneDNNExecutor(Executor):
    """Nothing but the runner."""

    def __init__(self) -> None:
        self._runner: OneDNNRunner | None = None

    def capabilities(self) -> Capabilities:
        """See ``Executor``."""
        return Capabilities(
            name="cpu",
            description="oneDNN through torch",
            devices=("cpu",),
            dtypes=("float32", "bfloat16") if REFUSAL is None else ("float32",),
            fast_dtypes={"cpu": ("bfloat16",)},
            block_sizes=(16, 8, 32),
        )

    def load(
        self,
        model: ModelSource | None,
        config: ExecutorConfig,
        progress: ProgressCallback | None = None,
    ) -> ModelInfo:
        """See ``Executor``."""
        if model is None:
            raise ConfigError("executor cpu: needs a model")
        options = CpuOptions.parse(config.options)
        self._runner = OneDNNRunner(model, config, options, progress)
        return self._runner.info

    def kv_spec(self) -> KVSpec:
        """See ``Executor``."""
        return self._loaded().kv_spec()

    def allocate_kv(self, num_blocks: int) -> KVLayout:
        """See ``Executor``."""
        return self._loaded().allocate_kv(num_blocks)

    def execute(self, plan: StepPlan) -> ForwardResult:
        """See ``Executor``."""
        return self._loaded().run(plan)

    def close(self) -> None:
        """See ``Executor``."""
        if self._runner is not None:
            self._runner.close()

    def _loaded(self) -> OneDNNRunner:
        assert self._runner is not None
        return self._runner


def load(
    executor: Executor, folder: Path, *, dtype: str = "float32", **options: str
) -> LoadedExecutor:
    """Load a Hugging Face directory, on one thread."""
    config = ExecutorConfig(dtype=dtype, num_threads=1, options=options)
    source = ModelSource("tiny", folder, CheckpointFormat.HF_DIRECTORY)
    return load_executor(executor, source, config, num_blocks=99)


def prompt_logits(loaded: LoadedExecutor, ids: tuple[int, ...]) -> torch.Tensor:
    """Run one prompt in one step: logits of every token, ``[N, vocab_size]``."""
    request = GenerateRequest("prompt", ids, SamplingParams())
    blocks = tuple(range(1, 1 + -(-len(ids) // loaded.block_size)))
    entry = ScheduledRequest(request, 0, ids, 0, blocks, len(ids), 0)
    result = loaded.executor.execute(StepPlan(0, (entry,), 1, (), (), ()))
    logits = result.logits
    assert isinstance(logits, torch.Tensor)
    return logits.clone()
