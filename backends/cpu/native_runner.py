"""Runs a built engine in the compiled kernels: one native call a step."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.free_memory import free_host_memory_bytes
from hybrid.backends.interface import ExecutorConfig, KVSpec, ModelInfo
from hybrid.backends.usable_cpus import num_usable_cpus
from hybrid.bridge import KVLayout, KVOrder, csr_block_table, pack_batch
from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.plan import StepPlan

from .abi import Step
from .engine_directory import BuiltEngine
from .kv_cells import NUM_KV, KVCells, cell_bytes
from .native_library import NativeLibrary
from .native_model import NativeModel


class NativeRunner:
    """See ``Runner``.

    Raises:
        ConfigError: the instruction set that was asked for does not run here, or
            ``max_num_seqs`` is too large for any memory.
        ExecutorFailed: the kernels refuse the plan, or there is no memory for it.
    """

    def __init__(
        self, library: NativeLibrary, engine: BuiltEngine, config: ExecutorConfig
    ) -> None:
        shape = engine.shape
        self.info: Final = ModelInfo(
            architecture=shape.architecture,
            vocab_size=shape.vocab_size,
            max_model_len=shape.max_model_len,
        )
        self._engine: Final = engine
        self._block_size: Final = config.block_size
        self._model: Final = NativeModel(
            library, engine, num_threads=config.num_threads or num_usable_cpus()
        )
        self._cells: KVCells | None = None
        self._logits = _allocate_logits(config.max_num_seqs, shape.vocab_size)
        self._step: Final = Step()

    def kv_spec(self) -> KVSpec:
        """See ``Runner``."""
        shape, dtype = self._engine.shape, self._engine.kv_cache_dtype
        cell = cell_bytes(
            num_kv_heads=shape.num_kv_heads,
            block_size=self._block_size,
            head_dim=shape.head_dim,
            dtype=dtype,
        )
        taken = self._logits.nbytes
        if self._engine.is_mapped:  # pages of a file count as free until they are read
            taken += self._engine.memory.weights_bytes
        return KVSpec(
            num_layers=shape.num_layers,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            dtype=dtype,
            order=KVOrder.LAYER_FIRST,
            available_bytes=max(0, free_host_memory_bytes() - taken),
            cell_bytes=NUM_KV * cell if dtype == "int8" else None,
        )

    def allocate_kv(self, num_blocks: int) -> KVLayout | None:
        """See ``Runner``."""
        spec = self.kv_spec()
        self._cells = KVCells(spec, num_blocks=num_blocks, block_size=self._block_size)
        self._model.bind(self._cells)
        if spec.cell_bytes is not None:
            return None
        return spec.layout(num_blocks, self._block_size)

    def run(self, plan: StepPlan) -> NDArray[np.float32]:
        """See ``Runner``."""
        assert self._cells is not None, "allocate_kv comes before run"
        self._cells.copy_blocks(plan.block_copies)
        batch = pack_batch(plan)
        table = csr_block_table(plan.scheduled, batch.seq_lens, self._block_size)
        logits = self._logits_of(len(batch.logits_rows))
        step = self._step
        step.num_tokens = len(batch.input_ids)
        step.num_seqs = len(batch.seq_lens)
        step.num_rows = len(logits)
        # The arrays live in this frame, until the call is over.
        step.input_ids = batch.input_ids.ctypes.data
        step.positions = batch.positions.ctypes.data
        step.query_start = batch.query_start_loc.ctypes.data
        step.table_start = table.indptr.ctypes.data
        step.block_ids = table.indices.ctypes.data
        step.logits_rows = batch.logits_rows.ctypes.data
        step.logits = logits.ctypes.data
        self._model.forward(step)
        return logits

    def close(self) -> None:
        """See ``Runner``."""
        self._model.close()
        self._cells = None
        self._logits = self._logits[:0].copy()

    def _logits_of(self, num_rows: int) -> NDArray[np.float32]:
        """Memory for a step's rows.

        More than there are sequences come of prompt log-probabilities alone: those are
        too many to be kept.
        """
        if num_rows <= len(self._logits):
            return self._logits[:num_rows]
        return np.empty((num_rows, self.info.vocab_size), dtype=np.float32)


def _allocate_logits(max_num_seqs: int, vocab_size: int) -> NDArray[np.float32]:
    """A row for each sequence; pages that no step writes to take no memory."""
    try:
        return np.empty((max_num_seqs, vocab_size), dtype=np.float32)
    except (MemoryError, ValueError) as error:
        raise ConfigError(
            f"max_num_seqs is {max_num_seqs}: there is no memory for the {vocab_size} "
            "logits of each; give fewer"
        ) from error
