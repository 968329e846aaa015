"""A loaded executor with its pool, and engines of any limits over it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybrid.backends.checkpoint.model_source import ModelSource
from hybrid.backends.interface import Executor, ExecutorConfig, ModelInfo
from hybrid.bridge import KVLayout
from hybrid.engine import HybridEngine
from hybrid.sampler.sampler import Sampler
from hybrid.scheduler import PagedScheduler, SchedulerConfig

from .recording_executor import RecordingExecutor

if TYPE_CHECKING:
    # Text is an extra, which executors without a model do without.
    from hybrid.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LoadedExecutor:
    """For engines in turn: each is a fresh scheduler over the same, used, pool."""

    executor: Executor
    info: ModelInfo
    config: ExecutorConfig
    num_blocks: int
    """Usable ones; the null block comes on top."""
    layout: KVLayout | None
    """``None`` where the executor's cells fit no layout."""
    source: ModelSource | None = None
    tokenizer: "Tokenizer | None" = None

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.config.block_size

    def engine(
        self, *, executor: Executor | None = None, seed: int = 0, **limits: Any
    ) -> HybridEngine:
        """Make an engine that does what the executor declares.

        Args:
            executor: what stands between, if anything (a recorder).
            seed: of the sampler.
            limits: the scheduler's, in place of all that the pool and model allow.
        """
        can = self.executor.capabilities()
        defaults = {
            "num_blocks": self.num_blocks,
            "max_model_len": self.info.max_model_len,
            # Without chunks a step must hold a whole context.
            "max_num_batched_tokens": self.info.max_num_batched_tokens
            or max(2048, self.info.max_model_len),
            "enable_chunked_prefill": can.chunked_prefill,
            "align_chunks": can.aligned_chunks,
            "enable_prefix_caching": can.prefix_reuse,
            "supports_block_copy": can.block_copy,
        }
        config = SchedulerConfig(block_size=self.block_size, **(defaults | limits))
        return HybridEngine(
            PagedScheduler(config),
            # One that fails must not close what serves the next.
            executor or RecordingExecutor(self.executor),
            sampler=Sampler(self.info.vocab_size, seed=seed),
            tokenizer=self.tokenizer,
            block_size=self.block_size,
            max_logprobs=self.info.vocab_size,
        )


def load_executor(
    executor: Executor,
    source: ModelSource | None,
    config: ExecutorConfig,
    *,
    num_blocks: int,
) -> LoadedExecutor:
    """Load a model and allocate a pool.

    Args:
        executor: fresh; whoever passed it closes it.
        source: the model, ``None`` for an executor without one.
        config: resolved: no ``auto``.
        num_blocks: usable blocks; the null block comes on top.
    """
    info = executor.load(source, config)
    layout = executor.allocate_kv(num_blocks + 1)
    return LoadedExecutor(executor, info, config, num_blocks, layout, source)
