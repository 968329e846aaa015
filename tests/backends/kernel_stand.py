"""Runs a few ops of the compiled kernels over memory that shows every stray access.

Weights, vectors and a step's arrays end at guard pages; activations lie in an arena of
``0xFF`` bytes (no numbers, as floats), which must still be there around each buffer.
"""

import os
from ctypes import c_uint8, c_void_p
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.cpu import abi
from hybrid.backends.cpu.abi import Format
from hybrid.backends.cpu.native_library import (
    NativeLibrary,
    NativeUnavailable,
    load_library,
)
from tests.backends.guarded_memory import guarded
from tests.backends.kernel_plan import Buffer, Plan
from tests.backends.kernel_step import StepArrays
from tests.backends.packed_matrix import PackedMatrix

_Array = NDArray[Any]
_UNTOUCHED: Final = 0xFF
LIBRARY_VARIABLE: Final = "HYBRID_TEST_CPU_LIBRARY"
"""Names another library to test, say one built with sanitizers."""


def open_library() -> NativeLibrary:
    """Open the library under test.

    Raises:
        NativeUnavailable: it was not built.
    """
    path = os.environ.get(LIBRARY_VARIABLE)
    return NativeLibrary(Path(path)) if path else load_library()


def variants_here() -> tuple[str, ...]:
    """Name the variants to test; none where no library was built."""
    try:
        return open_library().variants()
    except NativeUnavailable:
        return ()


VARIANTS: Final = variants_here()


class KernelModel:
    """A plan made into a model of one variant; destroyed at the end of the block."""

    def __init__(
        self, plan: Plan, variant: str, pool: abi.KvPool | None = None
    ) -> None:
        """Create it.

        Args:
            plan: what it computes.
            variant: one of ``VARIANTS``.
            pool: the cache; two blocks of 16 tokens that no op uses, by default.
        """
        self._plan: Final = plan
        self._library: Final = open_library()
        self._kept: list[Any] = []
        config = self._config(self._library.variant_index(variant))
        self._handle: Final = self._library.create(config)
        self._library.bind_kv(self._handle, pool or self._spare_pool())
        address = self._library.arena(self._handle)
        memory = (c_uint8 * plan.arena.num_bytes).from_address(address)
        self._bytes: Final = np.frombuffer(memory, np.uint8)
        self._bytes[...] = _UNTOUCHED
        self._most_tokens = 0

    def __enter__(self) -> Self:
        """Give the model."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Destroy it."""
        self._library.destroy(self._handle)

    def put(self, buffer: Buffer, rows: _Array) -> None:
        """Write rows of any dtype; what a row leaves of its stride stays untouched."""
        data = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
        self._rows(buffer)[: len(rows), : data.shape[1]] = data

    def get(self, buffer: Buffer, dtype: type[np.generic], rows: int) -> _Array:
        """Copy the first rows, whole strides, as one dtype."""
        return self._rows(buffer)[:rows].copy().view(dtype)

    def forward(
        self,
        step: StepArrays,
        logits: _Array | None = None,
        likeliest: _Array | None = None,
    ) -> None:
        """Run a step, and check that nothing around the buffers was written."""
        self._library.forward(self._handle, step.struct(logits, likeliest))
        self._most_tokens = max(self._most_tokens, step.num_tokens)
        outside = np.ones(len(self._bytes), np.bool_)
        for buffer in self._plan.arena.buffers:
            rows = min(buffer.rows, self._most_tokens)
            outside[buffer.offset : buffer.offset + rows * buffer.stride] = False
        stray = np.flatnonzero(outside & (self._bytes != _UNTOUCHED))
        assert not stray.size, f"wrote outside of its buffers, at {stray[:8]}"

    def _rows(self, buffer: Buffer) -> _Array:
        size = buffer.rows * buffer.stride
        flat = self._bytes[buffer.offset : buffer.offset + size]
        return flat.reshape(buffer.rows, buffer.stride)

    def _config(self, variant: int) -> abi.ModelConfig:
        plan = self._plan
        frequencies = plan.inverse_frequencies
        if frequencies is None:
            frequencies = np.ones(plan.head_dim // 2)
        vectors = [guarded(v.astype(np.float32)) for v in plan.vectors]
        config = abi.ModelConfig(
            abi_version=abi.ABI_VERSION,
            variant=variant,
            num_threads=plan.num_threads,
            chunk_tokens=plan.chunk_tokens or plan.arena.rows,
            num_heads=plan.num_heads,
            num_kv_heads=plan.num_kv_heads,
            head_dim=plan.head_dim,
            num_layers=len(plan.windows),
            num_ops=len(plan.ops),
            num_weights=len(plan.weights),
            num_vectors=len(vectors),
            vocab_size=plan.vocab_size,
            norm_epsilon=plan.norm_epsilon,
            attention_scale=plan.attention_scale,
            rope_scale=plan.rope_scale,
            unit_tokens=plan.arena.rows,
            batch_invariant=plan.batch_invariant,
            arena_bytes=plan.arena.num_bytes,
            ops=(abi.Op * len(plan.ops))(*plan.ops),
            weights=(abi.Weight * len(plan.weights))(*map(_weight, plan.weights)),
            vectors=(c_void_p * len(vectors))(*(v.ctypes.data for v in vectors)),
            inverse_frequencies=self._keep(guarded(frequencies.astype(np.float32))),
            windows=self._keep(guarded(np.asarray(plan.windows, np.int32))),
        )
        self._kept += [config, *vectors]
        return config

    def _spare_pool(self) -> abi.KvPool:
        plan = self._plan
        cell = plan.num_kv_heads * 16 * plan.head_dim * 4
        blocks = 64
        shape = (len(plan.windows), 2, blocks, cell)
        return abi.KvPool(
            base=self._keep(np.zeros(shape, np.uint8)),
            block_stride=cell,
            kv_stride=cell * blocks,
            layer_stride=cell * blocks * 2,
            num_blocks=blocks,
            format=Format.F32,
            block_size=16,
        )

    def _keep(self, array: _Array) -> int:
        self._kept.append(array)
        return array.ctypes.data


def _weight(matrix: PackedMatrix) -> abi.Weight:
    def address(array: _Array | None) -> int | None:
        return None if array is None else array.ctypes.data

    return abi.Weight(
        format=matrix.format,
        rows=matrix.rows,
        columns=matrix.columns,
        data=matrix.data.ctypes.data,
        scales=address(matrix.scales),
        bias=address(matrix.bias),
    )
