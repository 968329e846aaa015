"""Runs our Llama-shaped model over the attention that the probe chose."""

from typing import Final

import structlog
import torch

from hybrid.backends.checkpoint.model_source import ModelSource
from hybrid.backends.interface import ExecutorConfig, ModelInfo, ProgressCallback
from hybrid.backends.pytorch.kv_pool import TORCH_DTYPES, KVPool
from hybrid.backends.pytorch.llama import Llama
from hybrid.backends.pytorch.llama_loader import load_llama
from hybrid.backends.pytorch.llama_shape import LlamaShape
from hybrid.bridge import pack_batch
from hybrid.scheduler.plan import StepPlan

from .attention import Attention, AttentionNeeds
from .decode_graphs import DecodeGraphs, graph_memory_bytes
from .machine import Machine
from .options import Options
from .probe import choose_attention
from .runner import CacheSizes, Runner
from .scaled_kv_pool import make_pool
from .sent_array import SentArray

log = structlog.get_logger()


class ModelRunner(Runner):
    """A checkpoint's weights in our model.

    Raises:
        CheckpointError: the files are at fault.
        UnsupportedFeature: the model is not Llama-shaped.
        ConfigError: the attention that was asked for cannot serve; says why.
    """

    def __init__(
        self,
        source: ModelSource,
        config: ExecutorConfig,
        options: Options,
        machine: Machine,
        progress: ProgressCallback | None = None,
    ) -> None:
        self._config: Final = config
        self._options: Final = options
        self._device: Final = torch.device(config.device)
        loaded = load_llama(source.path, config, "tensorrt_llm", progress)
        self._model: Llama | None = loaded.model
        self._shape: Final = loaded.shape
        self._needs: Final = _needs(loaded.shape, config, options, machine)
        choice = choose_attention(options.attention, machine, self._needs)
        log.info("attention.chosen", attention=choice.name, passed_over=choice.reasons)
        self._attention_class: Final = choice.attention
        self._attention: Attention | None = None
        self._graphs: DecodeGraphs | None = None
        # Rows: ids, positions, places of the logits that are wanted.
        self._inputs = SentArray.zeros(
            (3, config.max_num_seqs), torch.int64, self._device
        )

    @property
    def info(self) -> ModelInfo:
        """See ``Runner``."""
        return ModelInfo(
            architecture=self._shape.architecture,
            vocab_size=self._shape.vocab_size,
            max_model_len=self._shape.max_model_len,
        )

    @property
    def cache(self) -> CacheSizes:
        """See ``Runner``."""
        return CacheSizes(
            num_layers=len(self._shape.windows),
            num_kv_heads=self._shape.num_kv_heads,
            head_dim=self._shape.head_dim,
            dtype=self._needs.kv_dtype,
        )

    @property
    def reserved_bytes(self) -> int:
        """The attention's workspaces, and what graphs keep."""
        needs = self._needs
        num_bytes = self._attention_class.workspace_bytes(needs)
        if self._captures:
            dtype = TORCH_DTYPES[needs.dtype]
            vocab_size = self._shape.vocab_size
            num_bytes += graph_memory_bytes(needs.max_num_seqs, vocab_size, dtype)
        return num_bytes

    def make_pool(self, num_blocks: int) -> KVPool:
        """See ``Runner``."""
        needs = self._needs
        pool = make_pool(needs, num_blocks)
        self._attention = self._attention_class(needs, pool)
        if self._captures:
            self._graphs = DecodeGraphs(
                self._forward, self._attention, needs.max_num_seqs, self._device
            )
        return pool

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> torch.Tensor:
        """See ``Runner``."""
        attention = self._attention
        assert attention is not None, "make_pool comes before run"
        if self._graphs is not None and self._graphs.takes(plan):
            return self._graphs.run(plan)
        batch = pack_batch(plan)
        attention.begin_step(plan, batch)
        num_tokens, rows = len(batch.input_ids), batch.logits_rows
        self._inputs = self._inputs.at_least(num_tokens)
        wanted = () if len(rows) == num_tokens else (rows,)
        return self._forward(
            *self._inputs.put(batch.input_ids, batch.positions, *wanted)
        )

    def close(self) -> None:
        """See ``Runner``."""
        if self._attention is not None:
            self._attention.close()
        self._model = self._attention = self._graphs = None

    @property
    def _captures(self) -> bool:
        is_cuda = self._device.type == "cuda"
        can = self._attention_class.can_capture
        return is_cuda and self._options.cuda_graphs and can

    def _forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        model, attention = self._model, self._attention
        assert model is not None, "closed"
        assert attention is not None, "make_pool comes before run"
        return model.forward(input_ids, positions, rows, attention)


def _needs(
    shape: LlamaShape, config: ExecutorConfig, options: Options, machine: Machine
) -> AttentionNeeds:
    max_model_len = config.max_model_len or shape.max_model_len
    return AttentionNeeds(
        device=config.device,
        dtype=config.dtype,
        kv_dtype=config.dtype if options.kv_dtype == "auto" else options.kv_dtype,
        block_size=config.block_size,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        # A window that no sequence outgrows is none.
        windows=tuple(
            None if window is None or window >= max_model_len else window
            for window in shape.windows
        ),
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        scale=shape.scale,
        kv_scale=options.kv_scale,
        compute_capability=machine.compute_capability,
    )
