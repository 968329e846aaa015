"""A built engine as it lies on disk, and as it is used: mapped, never copied.

<dir>/hybrid_cpu_engine.json  shape, plan, memory plan, what it was built from
<dir>/weights.safetensors     packed weights, 64-byte aligned
<dir>/config.json, tokenizer  the model's own, so that the directory is a model
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .abi import Format
from .model_shape import CpuModelShape

MANIFEST_NAME: Final = "hybrid_cpu_engine.json"
WEIGHTS_NAME: Final = "weights.safetensors"


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """One matrix as the kernels read it; arrays are read-only views of the file."""

    name: str
    format: Format
    rows: int
    columns: int
    data: NDArray[np.uint8] = field(repr=False)
    """Flat, 64-byte aligned, laid out as ``native/abi.h`` says."""
    scales: NDArray[np.float32] | None = field(repr=False)
    """``[rows rounded up to 16]``, of int8."""
    bias: NDArray[np.float32] | None = field(repr=False)
    """``[rows]``."""


@dataclass(frozen=True, slots=True)
class PlacedOp:
    """One op, every field as ``abi.Op`` has it: ``Op(*dataclasses.astuple(op))``."""

    kind: int
    flags: int
    layer: int
    weight: int
    norm: int
    norm2: int
    format: int
    width: int
    source_offset: int
    """Bytes into the arena, or -1."""
    target_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """What the engine needs, bytes."""

    weights_by_format: dict[str, int]
    """``int8`` and so on, to the bytes of matrices, scales included; ``vectors``: norms
    and biases."""
    arena_bytes: int
    """Activations, buffers shared."""
    unshared_arena_bytes: int
    """The same if every activation had a place of its own."""
    kv_bytes_per_token: int
    """Over all layers, in ``kv_cache_dtype``."""

    @property
    def weights_bytes(self) -> int:
        """All that is read from ``weights.safetensors``."""
        return sum(self.weights_by_format.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEngine:
    """Everything that ``abi.ModelConfig`` is filled from."""

    directory: Path
    shape: CpuModelShape
    quantization: str
    """``fp32``, ``bf16``, ``int8`` or ``int4``: never ``auto``."""
    kv_cache_dtype: str
    """``float32``, ``bfloat16`` or ``int8``: never ``auto``."""
    chunk_tokens: int
    """Tokens of one pass."""
    ops: tuple[PlacedOp, ...] = field(repr=False)
    weights: tuple[PackedWeight, ...] = field(repr=False)
    vectors: tuple[NDArray[np.float32], ...] = field(repr=False)
    """Norms, in the order that ops name them; read-only views of the file."""
    memory: MemoryReport
