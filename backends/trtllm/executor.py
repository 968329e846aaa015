"""The ``tensorrt_llm`` executor: compiled kernels under our scheduler.

A checkpoint runs in our own model, its attention done by whoever can: TensorRT-LLM's
operator, its kernels in FlashInfer, or plain torch. An engine built by ``trtllm-build``
runs as it is. Both read and write one block-first pool, TensorRT-LLM's own layout.
"""

from contextlib import AbstractContextManager
from typing import Final

import torch

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
from hybrid.backends.pytorch.device import fast_dtypes, free_memory_bytes
from hybrid.backends.pytorch.kv_pool import TORCH_DTYPES, KVPool
from hybrid.bridge import KVLayout, KVOrder
from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.plan import StepPlan

from .engine_check import BLOCK_SIZES
from .engine_config import ENGINE_FILE
from .machine import Machine
from .options import Options
from .runner import Runner


class TrtllmExecutor(Executor):
    """Runs step plans over TensorRT-LLM's paged layout."""

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine: Final = machine or Machine.detect()
        self._config = ExecutorConfig()
        self._runner: Runner | None = None
        self._pool: KVPool | None = None

    def capabilities(self) -> Capabilities:
        """See ``Executor``."""
        devices = self._machine.devices
        return Capabilities(
            name="tensorrt_llm",
            description="TensorRT-LLM's kernels or engines; without a GPU plain torch",
            devices=devices,
            dtypes=tuple(TORCH_DTYPES),
            fast_dtypes={device: fast_dtypes(device) for device in devices},
            block_sizes=BLOCK_SIZES,
            kv_orders=(KVOrder.BLOCK_FIRST,),
            aligned_chunks=True,
            prompt_logprobs=self._runner is None or self._runner.gives_every_row,
            model_files=(ENGINE_FILE,),
        )

    def implementations(self) -> tuple[Implementation, ...]:
        """Who could attend here; see ``Executor``."""
        from .probe import explain  # noqa: PLC0415 - see _make_runner

        return explain(self._machine)

    def load(
        self,
        model: ModelSource | None,
        config: ExecutorConfig,
        progress: ProgressCallback | None = None,
    ) -> ModelInfo:
        """Load a Hugging Face directory or an engine; see ``Executor``."""
        options = Options.parse(config.options)
        if model is None or model.format is CheckpointFormat.GGUF:
            found = "none" if model is None else f"{model.path} ({model.format})"
            raise ConfigError(
                "executor tensorrt_llm: needs a Hugging Face directory or an engine, "
                f"got {found}"
            )
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        self._config = config
        with self._on_device():
            self._runner = self._make_runner(model, options, progress)
        return self._runner.info

    def kv_spec(self) -> KVSpec:
        """Sizes from the model, memory from the device."""
        runner = self._loaded()
        sizes = runner.cache
        with self._on_device():
            free = free_memory_bytes(torch.device(self._config.device))
        return KVSpec(
            num_layers=sizes.num_layers,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            dtype=sizes.dtype,
            order=KVOrder.BLOCK_FIRST,
            available_bytes=max(0, free - runner.reserved_bytes),
        )

    def allocate_kv(self, num_blocks: int) -> KVLayout:
        """See ``Executor``."""
        with self._on_device():
            self._pool = self._loaded().make_pool(num_blocks)
        return self._pool.layout

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> ForwardResult:
        """Copy blocks, run the step, bring its logits to the host."""
        runner, pool = self._loaded(), self._pool
        assert pool is not None, "allocate_kv comes before execute"
        with self._on_device():
            pool.copy_blocks(plan.block_copies)
            logits = runner.run(plan).to("cpu", torch.float32)
        return ForwardResult(logits=logits)

    def close(self) -> None:
        """Drop runner and pool."""
        with self._on_device():
            if self._runner is not None:
                self._runner.close()
            if self._pool is not None:
                self._pool.lent.release()
            self._runner = self._pool = None
            if self._config.device == "cuda":
                torch.cuda.empty_cache()

    def _on_device(self) -> AbstractContextManager[object]:
        return self._machine.using(self._config.device)

    def _make_runner(
        self, model: ModelSource, options: Options, progress: ProgressCallback | None
    ) -> Runner:
        # Imported here: `hybrid executors` asks for capabilities only.
        if model.format is CheckpointFormat.COMPILED:
            from .engine_runner import EngineRunner  # noqa: PLC0415

            return EngineRunner(model, self._config, self._machine)
        from .model_runner import ModelRunner  # noqa: PLC0415

        return ModelRunner(model, self._config, options, self._machine, progress)

    def _loaded(self) -> Runner:
        assert self._runner is not None, "load comes first"
        return self._runner
