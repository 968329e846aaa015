"""A built engine as it lies on disk, and as it is used: mapped, never copied.

<dir>/hybrid_cpu_engine.json  shape, plan, memory plan, what it was built from
<dir>/weights.safetensors     packed weights, 64-byte aligned
<dir>/config.json, tokenizer  the model's own, so that the directory is a model

Reading one imports no library of models and reads no weight.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.checkpoint.json_file import read_json_object
from hybrid.backends.checkpoint.safetensors_map import SafetensorsMap
from hybrid.scheduler.errors import CheckpointError
from hybrid.scheduler.shown_value import shown

from .abi import ABI_VERSION, Format
from .model_shape import CpuModelShape
from .weight_packing import TILE_ROWS, packed_bytes, packed_scales, round_up

MANIFEST_NAME: Final = "hybrid_cpu_engine.json"
WEIGHTS_NAME: Final = "weights.safetensors"
ENGINE_VERSION: Final = 1
"""Raised when a directory would be written otherwise; ``ABI_VERSION`` when the kernels
read weights or plans otherwise."""
_REBUILD: Final = "build it again with `hybrid build MODEL -o DIR`"


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """One matrix as the kernels read it; arrays are read-only views of the file."""

    name: str
    format: Format
    rows: int
    columns: int
    data: NDArray[np.uint8] = field(repr=False)
    """Flat, 64-byte aligned, laid out as ``native/abi.h`` says."""
    scales: NDArray[np.float16] | None = field(repr=False)
    """Of int8, flat, laid out so too; what pads them may follow."""
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

    weights_by_format: Mapping[str, int]
    """``int8`` and so on, to the bytes of matrices, scales included; ``vectors``: norms
    and biases."""
    arena_bytes: int
    """Activations, buffers shared."""
    unshared_arena_bytes: int
    """The same if every activation had a place of its own."""

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

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token over all layers, scales of int8 included."""
        shape = self.shape
        size = {"float32": 4, "bfloat16": 2, "int8": 1}[self.kv_cache_dtype]
        head = shape.head_dim * size + 4 * (self.kv_cache_dtype == "int8")
        return 2 * shape.num_layers * shape.num_kv_heads * head


def read_engine(directory: Path) -> BuiltEngine:
    """Map a built engine.

    Raises:
        CheckpointError: it was built by another version, is damaged or incomplete, or
            stands beside another model's config.json; says what to rebuild.
    """
    manifest = read_json_object(directory / MANIFEST_NAME)
    if manifest is None:
        raise CheckpointError(f"{directory} has no {MANIFEST_NAME}; {_REBUILD}")
    _check_versions(directory, manifest)
    _check_config(directory, manifest)
    weights = SafetensorsMap(directory / WEIGHTS_NAME)
    try:
        return _engine(directory, manifest, weights)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{directory / MANIFEST_NAME} and {WEIGHTS_NAME} do not fit: "
            f"{type(error).__name__}: {shown(str(error))}; {_REBUILD}"
        ) from error


def config_digest(directory: Path) -> str:
    """SHA-256 of config.json."""
    return hashlib.sha256((directory / "config.json").read_bytes()).hexdigest()


def _check_versions(directory: Path, manifest: Mapping[str, Any]) -> None:
    for name, own in (
        ("engine_version", ENGINE_VERSION),
        ("kernel_version", ABI_VERSION),
    ):
        if manifest.get(name) != own:
            raise CheckpointError(
                f"{directory} was built with {name} {shown(manifest.get(name))}, this "
                f"is {own}; {_REBUILD}"
            )


def _check_config(directory: Path, manifest: Mapping[str, Any]) -> None:
    try:
        found = config_digest(directory)
    except OSError as error:
        raise CheckpointError(
            f"{directory / 'config.json'} cannot be read: {error.strerror}; {_REBUILD}"
        ) from error
    if manifest.get("config_sha256") != found:
        raise CheckpointError(
            f"{directory / 'config.json'} is not the one that the engine was built "
            f"from; {_REBUILD}"
        )


def _engine(
    directory: Path, manifest: Mapping[str, Any], stored: SafetensorsMap
) -> BuiltEngine:
    return BuiltEngine(
        directory=directory,
        shape=CpuModelShape.from_json(manifest["shape"]),
        quantization=manifest["quantization"],
        kv_cache_dtype=manifest["kv_cache_dtype"],
        chunk_tokens=manifest["chunk_tokens"],
        ops=tuple(PlacedOp(*fields) for fields in manifest["ops"]),
        weights=tuple(_weight(stored, **weight) for weight in manifest["weights"]),
        vectors=tuple(
            _numbers(stored, name, length)
            for name, length in manifest["vectors"].items()
        ),
        memory=MemoryReport(**manifest["memory"]),
    )


def _weight(
    stored: SafetensorsMap, name: str, form: str, rows: int, columns: int
) -> PackedWeight:
    kind = Format[form]
    data = stored.bytes_of(f"{name}.data")
    needed = packed_bytes(kind, rows, columns)
    if len(data) != needed:
        raise ValueError(f"{name} has {len(data)} bytes, needs {needed}")
    scales = None
    if kind is Format.INT8:
        scales = stored.bytes_of(f"{name}.scales").view(np.float16)
        if len(scales) != (needed := packed_scales(rows, columns)):
            raise ValueError(f"{name} has {len(scales)} scales, needs {needed}")
    has_bias = f"{name}.bias" in stored.entries
    bias = _numbers(stored, f"{name}.bias", rows) if has_bias else None
    return PackedWeight(name, kind, rows, columns, data, scales, bias)


def _numbers(stored: SafetensorsMap, name: str, length: int) -> NDArray[np.float32]:
    """Take the first numbers of a vector that was padded to whole cache lines."""
    numbers = stored.bytes_of(name).view(np.float32)
    if len(numbers) != round_up(length, TILE_ROWS):
        raise ValueError(f"{name} has {len(numbers)} numbers, needs {length}")
    return numbers[:length]
