"""An executor without a model: the next token is a hash of the context it reads back.

It keeps what a real one keeps, a paged cache, but of token ids: each step writes its
tokens by slot and reads every context through the block table. So an answer comes out
right only if tables, slots, copies and prefix reuse are right, and it costs no torch.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.checkpoint.json_file import read_json_object
from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import (
    Capabilities,
    Executor,
    ExecutorConfig,
    ForwardResult,
    KVSpec,
    ModelInfo,
    ProgressCallback,
)
from hybrid.bridge import (
    CSRBlockTable,
    KVLayout,
    KVOrder,
    PackedBatch,
    csr_block_table,
    pack_batch,
    slot_mapping,
)
from hybrid.scheduler.errors import CheckpointError, ConfigError
from hybrid.scheduler.plan import StepPlan

DEFAULT_VOCAB_SIZE: Final = 512
DEFAULT_MAX_MODEL_LEN: Final = 4096
MAX_CACHE_BYTES: Final = 1 << 30
"""What it calls available; the engine takes half unless told otherwise."""
LOGIT_RANGE: Final = 8.0
_EMPTY: Final = -1
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX: Final = np.uint64(0xBF58476D1CE4E5B9)

CAPABILITIES: Final = Capabilities(
    name="null",
    description="deterministic hash over the paged cache; for tests and plumbing",
    devices=("cpu",),
    dtypes=("float32",),
    fast_dtypes={"cpu": ("float32",)},
    block_sizes=(16, 1, 2, 4, 8, 32, 64, 128),
    kv_orders=(KVOrder.LAYER_FIRST,),
)


class NullExecutor(Executor):
    """Answers from a hash; options: ``vocab_size`` and ``max_model_len`` (integers)."""

    def __init__(self) -> None:
        self._config = ExecutorConfig()
        self._vocab_size = DEFAULT_VOCAB_SIZE
        self._cache: NDArray[np.int64] = np.empty((0, 2), dtype=np.int64)

    def capabilities(self) -> Capabilities:
        """See ``Executor``."""
        return CAPABILITIES

    def load(
        self,
        model: ModelSource | None,
        config: ExecutorConfig,
        progress: ProgressCallback | None = None,
    ) -> ModelInfo:
        """Take the vocabulary's size from the options or the model's config.json."""
        unknown = set(config.options) - {"vocab_size", "max_model_len"}
        if unknown:
            raise ConfigError(
                f"executor null: unknown option {min(unknown)!r}; "
                "it has vocab_size and max_model_len"
            )
        settings: dict[str, object] | None = {}
        if model is not None and model.format is CheckpointFormat.HF_DIRECTORY:
            settings = read_json_object(model.path / "config.json")
            if settings is None:
                raise CheckpointError(f"{model.path} has no config.json")
        vocab_size = _size(settings, "vocab_size", DEFAULT_VOCAB_SIZE)
        longest = _size(settings, "max_position_embeddings", DEFAULT_MAX_MODEL_LEN)
        self._config = config
        self._vocab_size = _size(config.options, "vocab_size", vocab_size)
        if progress is not None:
            progress("load", 1, 1)
        return ModelInfo(
            architecture="null",
            vocab_size=self._vocab_size,
            max_model_len=_size(config.options, "max_model_len", longest),
        )

    def kv_spec(self) -> KVSpec:
        """One layer, one head, one number: a token id beside its position."""
        return KVSpec(
            num_layers=1,
            num_kv_heads=1,
            head_dim=1,
            dtype="float32",
            order=KVOrder.LAYER_FIRST,
            available_bytes=MAX_CACHE_BYTES,
        )

    def allocate_kv(self, num_blocks: int) -> KVLayout:
        """Allocate ``[num_blocks * block_size, 2]``: token id and position per slot."""
        layout = self.kv_spec().layout(num_blocks, self._config.block_size)
        shape = (num_blocks * self._config.block_size, 2)
        self._cache = np.full(shape, _EMPTY, dtype=np.int64)
        return layout

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Copy blocks, write token ids by slot, hash each context read back."""
        block_size = self._config.block_size
        blocks = self._cache.reshape(-1, block_size, 2)
        for copy in plan.block_copies:
            blocks[copy.target] = blocks[copy.source]
        batch = pack_batch(plan)
        table = csr_block_table(plan.scheduled, batch.seq_lens, block_size)
        slots = slot_mapping(batch, table, block_size)
        self._cache[slots, 0] = batch.input_ids
        self._cache[slots, 1] = batch.positions
        num_rows = [entry.num_logits_rows for entry in plan.scheduled]
        hashes = [
            self._context_hashes(batch, table, index)[-rows:]
            for index, rows in enumerate(num_rows)
            if rows
        ]
        states = np.concatenate(hashes) if hashes else np.empty(0, dtype=np.uint64)
        return ForwardResult(logits=self._logits(states))

    def close(self) -> None:
        """Drop the cache."""
        self._cache = np.empty((0, 2), dtype=np.int64)

    def _context_hashes(
        self, batch: PackedBatch, table: CSRBlockTable, index: int
    ) -> NDArray[np.uint64]:
        """Hash of every prefix of one context: uint64 ``[seq_len]``."""
        length = int(batch.seq_lens[index])
        ids = table.indices[table.indptr[index] : table.indptr[index + 1]]
        block_size = self._config.block_size
        context = self._cache.reshape(-1, block_size, 2)[ids].reshape(-1, 2)[:length]
        positions = np.arange(length, dtype=np.int64)
        wrong = np.flatnonzero(context[:, 1] != positions)
        if wrong.size:
            place = int(wrong[0])
            raise RuntimeError(
                f"block table of sequence {index}: the slot of position {place} holds "
                f"position {int(context[place, 1])}"
            )
        powers = _MULTIPLIER * (positions.astype(np.uint64) * _MIX + np.uint64(1))
        terms = (context[:, 0].astype(np.uint64) + np.uint64(1)) * powers
        return _mix(np.cumsum(terms ^ (terms >> np.uint64(29)), dtype=np.uint64))

    def _logits(self, states: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Spread each hash over the vocabulary: float32 ``[rows, vocab_size]``."""
        columns = np.arange(self._vocab_size, dtype=np.uint64) * _MULTIPLIER
        mixed = _mix(states[:, None] + columns)
        unit = (mixed >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
        logits: NDArray[np.float32] = (unit - np.float32(0.5)) * np.float32(LOGIT_RANGE)
        return logits


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble the bits (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * _MIX
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _size(options: Any, name: str, default: int) -> int:
    value = options.get(name, default)
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"executor null: {name} is {value!r}, must be 1 or more")
    return value
