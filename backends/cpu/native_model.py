"""Makes a model of a built engine in the compiled kernels, and ends it again."""

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from . import abi
from .engine_directory import BuiltEngine, PackedWeight
from .kv_cells import KVCells
from .native_library import ModelHandle, NativeLibrary

ARENAS_PER_THREAD: Final = 2
"""One that it works in, and one that it, or an idle thread, takes next. A pass is as
many tokens as fill all."""


class NativeModel:
    """A model in the kernels, with all that it points to.

    One that is dropped without `close` ends as if it were closed.

    Raises:
        ConfigError: the instruction set that was asked for does not run here.
        ExecutorFailed: the kernels refuse the plan, or there is no memory for it.
    """

    def __init__(
        self,
        library: NativeLibrary,
        engine: BuiltEngine,
        *,
        num_threads: int,
        batch_invariant: bool,
    ) -> None:
        self._library: Final = library
        # The kernels read weights and vectors where they are, and the pool;
        # all else they copy.
        self._engine: BuiltEngine | None = engine
        self._cells: KVCells | None = None
        derived = _derived_arrays(engine)
        config = _config(library, engine, derived, num_threads)
        config.batch_invariant = batch_invariant
        handle = library.create(config)
        self._handle: ModelHandle | None = handle
        # Before what it points to is freed: finalizers run ahead of that.
        self._end: Final = weakref.finalize(self, library.destroy, handle)
        # At the end of the process a thread may be in a step; the system frees all.
        self._end.atexit = False

    def bind(self, cells: KVCells) -> None:
        """Take a pool for every step from here on."""
        assert self._handle is not None, "the model was closed"
        self._library.bind_kv(self._handle, cells.describe())
        self._cells = cells

    def forward(self, step: abi.Step) -> None:
        """Run the plan; ends when what the step asks for is written.

        Raises:
            ExecutorFailed: an id, a row or a block is out of range; nothing was run.
        """
        assert self._handle is not None, "the model was closed"
        self._library.forward(self._handle, step)

    def close(self) -> None:
        """End the model's threads, let go of weights and pool. Twice is no error."""
        self._end()
        self._handle = self._engine = self._cells = None


def _derived_arrays(engine: BuiltEngine) -> tuple[NDArray[Any], NDArray[Any]]:
    """Inverse frequencies, float32; and windows, int32, 0 where a layer sees all."""
    shape = engine.shape
    frequencies = np.array(shape.inverse_frequencies, dtype=np.float32)
    windows = np.array([window or 0 for window in shape.windows], dtype=np.int32)
    return frequencies, windows


def _config(
    library: NativeLibrary,
    engine: BuiltEngine,
    derived: tuple[NDArray[Any], NDArray[Any]],
    num_threads: int,
) -> abi.ModelConfig:
    shape, (frequencies, windows) = engine.shape, derived
    ops = [abi.Op(*astuple(op)) for op in engine.ops]
    weights = [_weight(weight) for weight in engine.weights]
    vectors = [vector.ctypes.data for vector in engine.vectors]
    return abi.ModelConfig(
        abi_version=abi.ABI_VERSION,
        variant=library.variant_index(library.choose_variant()),
        num_threads=num_threads,
        chunk_tokens=ARENAS_PER_THREAD * num_threads * engine.unit_tokens,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        num_layers=shape.num_layers,
        num_ops=len(ops),
        num_weights=len(weights),
        num_vectors=len(vectors),
        vocab_size=shape.vocab_size,
        norm_epsilon=shape.norm_epsilon,
        attention_scale=shape.attention_scale,
        rope_scale=shape.rope_scale,
        unit_tokens=engine.unit_tokens,
        arena_bytes=engine.memory.arena_bytes,
        ops=_array(abi.Op, ops),
        weights=_array(abi.Weight, weights),
        vectors=_array(ctypes.c_void_p, vectors),
        inverse_frequencies=frequencies.ctypes.data,
        windows=windows.ctypes.data,
    )


def _weight(weight: PackedWeight) -> abi.Weight:
    scales, bias = weight.scales, weight.bias
    return abi.Weight(
        format=weight.format,
        rows=weight.rows,
        columns=weight.columns,
        data=weight.data.ctypes.data,
        scales=None if scales is None else scales.ctypes.data,
        bias=None if bias is None else bias.ctypes.data,
    )


def _array(kind: Any, items: Sequence[Any]) -> Any:
    return (kind * len(items))(*items)
