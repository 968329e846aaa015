"""Runs a built engine in the compiled kernels: one native call a step."""

from typing import Final

import numpy as np

from hybrid.backends.free_memory import free_host_memory_bytes
from hybrid.backends.interface import (
    ExecutorConfig,
    ForwardResult,
    KVSpec,
    ModelInfo,
)
from hybrid.backends.usable_cpus import num_usable_cpus
from hybrid.bridge import KVLayout, KVOrder
from hybrid.scheduler.plan import StepPlan

from .abi import Step
from .engine_directory import BuiltEngine
from .kv_cells import NUM_KV, KVCells, cell_bytes
from .native_library import NativeLibrary
from .native_model import NativeModel
from .result_rows import ResultRows
from .step_arrays import StepArrays


class NativeRunner:
    """See ``Runner``.

    Raises:
        ConfigError: the instruction set that was asked for does not run here, or
            ``max_num_seqs`` is too large for any memory.
        ExecutorFailed: the kernels refuse the plan, or there is no memory for it.
    """

    def __init__(
        self,
        library: NativeLibrary,
        engine: BuiltEngine,
        config: ExecutorConfig,
        *,
        batch_invariant: bool = True,
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
            library,
            engine,
            num_threads=config.num_threads or num_usable_cpus(),
            batch_invariant=batch_invariant,
        )
        self._cells: KVCells | None = None
        self._rows = ResultRows(config.max_num_seqs, shape.vocab_size)
        self._step: Final = Step()
        self._arrays: Final = StepArrays(self._step, block_size=config.block_size)

    def kv_spec(self) -> KVSpec:
        """See ``Runner``."""
        shape, dtype = self._engine.shape, self._engine.kv_cache_dtype
        cell = cell_bytes(
            num_kv_heads=shape.num_kv_heads,
            block_size=self._block_size,
            head_dim=shape.head_dim,
            dtype=dtype,
        )
        taken = self._rows.num_bytes
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

    def run(self, plan: StepPlan) -> ForwardResult:
        """See ``Runner``."""
        assert self._cells is not None, "allocate_kv comes before run"
        self._cells.copy_blocks(plan.block_copies)
        num_rows = self._arrays.fill(plan)
        step = self._step
        if num_rows <= self._rows.max_num_rows:
            address, step.likeliest = self._rows.addresses
            step.logits = address if plan.needs_logits else None
            self._model.forward(step)
            return self._rows.result(num_rows, has_logits=plan.needs_logits)
        # More than there are sequences come of prompt log-probabilities alone: too many
        # to be kept, and nobody draws from all of them.
        logits = np.empty((num_rows, self.info.vocab_size), dtype=np.float32)
        step.logits, step.likeliest = logits.ctypes.data, None
        self._model.forward(step)
        return ForwardResult(logits=logits)

    def close(self) -> None:
        """See ``Runner``."""
        self._model.close()
        self._cells = None
        self._rows = ResultRows(0, self.info.vocab_size)
