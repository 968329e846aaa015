"""Runs our Llama-shaped model through oneDNN, where our kernels were not compiled."""

from dataclasses import replace
from typing import Final

import torch

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import (
    ExecutorConfig,
    ForwardResult,
    KVSpec,
    ModelInfo,
    ProgressCallback,
)
from hybrid.backends.pytorch.device import free_memory_bytes
from hybrid.backends.pytorch.host_memory import keep_freed_memory
from hybrid.backends.pytorch.kv_pool import TORCH_DTYPES, KVPool
from hybrid.backends.pytorch.llama import Llama
from hybrid.backends.pytorch.llama_attention import LlamaAttention
from hybrid.backends.pytorch.llama_loader import load_llama
from hybrid.bridge import KVLayout, KVOrder
from hybrid.scheduler.errors import UnsupportedFeature
from hybrid.scheduler.plan import StepPlan

from .onednn_formats import OneDNNFormats
from .onednn_product import Int8Product, check_int8_products
from .options import CpuOptions


class OneDNNRunner:
    """See ``Runner``.

    Raises:
        CheckpointError: the files are at fault.
        UnsupportedFeature: torch or the CPU lacks the products, the model is not
            Llama-shaped, or it was built for the compiled kernels.
        ConfigError: an option needs the compiled kernels.
    """

    def __init__(
        self,
        source: ModelSource,
        config: ExecutorConfig,
        options: CpuOptions,
        progress: ProgressCallback | None = None,
    ) -> None:
        formats = OneDNNFormats.of(config.dtype, options)
        if source.format is not CheckpointFormat.HF_DIRECTORY:
            raise UnsupportedFeature(
                f"{source.path} was built for the compiled kernels; oneDNN takes the "
                "model that it was built from"
            )
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        if formats.weights == "int8":
            check_int8_products()
        self._formats: Final = formats
        self._block_size: Final = config.block_size
        config = replace(config, dtype=formats.loaded)
        loaded = load_llama(source.path, config, "cpu", progress)
        self._model: Llama | None = loaded.model
        self._shape: Final = loaded.shape
        if formats.weights == "int8":
            with torch.inference_mode():
                loaded.model.replace_products(Int8Product, torch.float32)
        keep_freed_memory()
        self._pool: KVPool | None = None
        self._attention: LlamaAttention | None = None

    @property
    def info(self) -> ModelInfo:
        """See ``Runner``."""
        return ModelInfo(
            architecture=self._shape.architecture,
            vocab_size=self._shape.vocab_size,
            max_model_len=self._shape.max_model_len,
        )

    def kv_spec(self) -> KVSpec:
        """See ``Runner``."""
        return KVSpec(
            num_layers=len(self._shape.windows),
            num_kv_heads=self._shape.num_kv_heads,
            head_dim=self._shape.head_dim,
            dtype=self._formats.cache,
            order=KVOrder.LAYER_FIRST,
            available_bytes=free_memory_bytes(torch.device("cpu")),
        )

    def allocate_kv(self, num_blocks: int) -> KVLayout:
        """See ``Runner``."""
        layout = self.kv_spec().layout(num_blocks, self._block_size)
        self._pool = KVPool(layout, torch.device("cpu"))
        self._attention = LlamaAttention(
            self._pool,
            num_heads=self._shape.num_heads,
            scale=self._shape.scale,
            windows=self._shape.windows,
            dtype=TORCH_DTYPES[layout.dtype],
        )
        return layout

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> ForwardResult:
        """See ``Runner``."""
        model, pool, attention = self._model, self._pool, self._attention
        assert model is not None, "closed"
        assert pool is not None, "allocate_kv comes before run"
        assert attention is not None, "made with the pool"
        pool.copy_blocks(plan.block_copies)
        batch = attention.begin_step(plan)
        logits = model.forward(
            torch.from_numpy(batch.input_ids),
            torch.from_numpy(batch.positions),
            torch.from_numpy(batch.logits_rows),
            attention,
        )
        return ForwardResult(logits=logits.float())

    def close(self) -> None:
        """See ``Runner``."""
        self._model = self._pool = self._attention = None
