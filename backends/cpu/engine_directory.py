"""A built engine as it lies on disk, and as it is used.

<dir>/hybrid_cpu_engine.json  shape, formats, plan with places, what it was built from
<dir>/weights.safetensors     packed weights, 64-byte aligned
<dir>/config.json, tokenizer  the model's own, so that the directory is a model

Reading one imports no library of models and reads no weight. The kernels write where
the plan says: the stored one must be that of shape and formats, which is made again.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.checkpoint.json_file import read_json_object
from hybrid.backends.checkpoint.safetensors_map import SafetensorsMap
from hybrid.scheduler.errors import CheckpointError
from hybrid.scheduler.shown_value import shown

from .abi import ABI_VERSION, Format
from .build_options import KV_CACHE_DTYPES, QUANTIZATIONS
from .kv_cells import NUM_KV, cell_bytes
from .model_shape import CpuModelShape, is_count
from .placed_plan import PlacedOp, PlacedPlan, place_plan
from .plan import WeightSpec, plan_model, weight_specs
from .weight_packing import TILE_ROWS, packed_bytes, packed_scales, round_up

MANIFEST_NAME: Final = "hybrid_cpu_engine.json"
WEIGHTS_NAME: Final = "weights.safetensors"
ENGINE_VERSION: Final = 5
"""Raised when a directory would be written otherwise; ``ABI_VERSION`` when the kernels
read weights or plans otherwise."""
_VERSIONS: Final = {"engine_version": ENGINE_VERSION, "kernel_version": ABI_VERSION}
_MAX_UNIT_TOKENS: Final = 1 << 14
_REBUILD: Final = "build it again with `hybrid build MODEL -o DIR`"


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """One matrix as the kernels read it; arrays are read-only, of the file at first."""

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

    @property
    def has_bias(self) -> bool:
        """Whether one is added to each row."""
        return self.bias is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """What the engine needs, bytes."""

    weights_by_format: Mapping[str, int]
    """``int8`` and so on, to the bytes of matrices, scales included; ``vectors``: norms
    and biases."""
    arena_bytes: int
    """Activations of ``unit_tokens`` tokens, buffers shared."""
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
    unit_tokens: int
    """Tokens that share an arena."""
    ops: tuple[PlacedOp, ...] = field(repr=False)
    weights: tuple[PackedWeight, ...] = field(repr=False)
    vectors: tuple[NDArray[np.float32], ...] = field(repr=False)
    """Norms, in the order that ops name them; read-only."""
    memory: MemoryReport
    source_fingerprint: str = field(repr=False)
    """Of the files that it was built from."""
    auto_quantization: str
    """What ``auto`` comes to for those files."""
    is_mapped: bool = True
    """Weights are pages of the file; see ``weight_pages``."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token over all layers, scales of int8 included."""
        shape = self.shape
        block_size = 64  # of which no cell is padded to whole lines
        cell = cell_bytes(
            num_kv_heads=shape.num_kv_heads,
            block_size=block_size,
            head_dim=shape.head_dim,
            dtype=self.kv_cache_dtype,
        )
        return NUM_KV * shape.num_layers * cell // block_size


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


def is_newer(manifest: Mapping[str, Any]) -> bool:
    """Whether a newer package wrote it, or one cannot tell."""
    versions = [(manifest.get(name), own) for name, own in _VERSIONS.items()]
    return any(not isinstance(found, int) or found > own for found, own in versions)


def _check_versions(directory: Path, manifest: Mapping[str, Any]) -> None:
    for name, own in _VERSIONS.items():
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
    shape = CpuModelShape.from_json(manifest["shape"])
    weights = tuple(_weight(stored, **weight) for weight in manifest["weights"])
    vectors = tuple(
        _numbers(stored, name, length) for name, length in manifest["vectors"].items()
    )
    plan = _checked_plan(manifest, shape, weights)
    return BuiltEngine(
        directory=directory,
        shape=shape,
        quantization=_one_of(QUANTIZATIONS, manifest["quantization"]),
        kv_cache_dtype=_one_of(KV_CACHE_DTYPES, manifest["kv_cache_dtype"]),
        unit_tokens=manifest["unit_tokens"],
        ops=plan.ops,
        weights=weights,
        vectors=vectors,
        memory=MemoryReport(
            weights_by_format=_bytes_by_format(weights, vectors),
            arena_bytes=plan.arena_bytes,
            unshared_arena_bytes=plan.unshared_arena_bytes,
        ),
        source_fingerprint=manifest["source_fingerprint"],
        auto_quantization=_one_of(QUANTIZATIONS, manifest["auto_quantization"]),
    )


def _checked_plan(
    manifest: Mapping[str, Any], shape: CpuModelShape, weights: Sequence[PackedWeight]
) -> PlacedPlan:
    """Make the plan again, and compare."""
    unit_tokens = manifest["unit_tokens"]
    if not is_count(unit_tokens) or unit_tokens > _MAX_UNIT_TOKENS:
        raise ValueError(
            f"unit_tokens is {shown(unit_tokens)}, must be 1 to {_MAX_UNIT_TOKENS}"
        )
    specs = weight_specs(shape)
    for weight, spec in zip_longest(weights, specs):
        found, wanted = (_described(item) for item in (weight, spec))
        if found != wanted or not is_count(spec.rows):
            raise ValueError(f"weight {found}, the shape has {wanted}")
    plan = plan_model(shape, {weight.name: weight.format for weight in weights})
    if list(manifest["vectors"].items()) != list(plan.vectors.items()):
        raise ValueError("norms are not those of the shape")
    placed = place_plan(plan, unit_tokens)
    ops = [list(astuple(op)) for op in placed.ops]
    if (manifest["ops"], manifest["arena_bytes"]) != (ops, placed.arena_bytes):
        raise ValueError("ops are not those of the shape")
    return placed


def _described(item: PackedWeight | WeightSpec | None) -> str:
    if item is None:
        return "none"
    bias = " + bias" if item.has_bias else ""
    return f"{item.name} [{item.rows}, {item.columns}]{bias}"


def _one_of(known: Sequence[str], value: str) -> str:
    if value not in known:
        raise ValueError(f"{shown(value)} is none of {', '.join(known)}")
    return value


def _bytes_by_format(
    weights: Sequence[PackedWeight], vectors: Sequence[NDArray[np.float32]]
) -> Mapping[str, int]:
    sizes: Counter[str] = Counter()
    numbers = [*vectors]
    for weight in weights:
        name = weight.format.name.lower()
        sizes[name] += weight.data.nbytes
        if weight.scales is not None:
            sizes[name] += weight.scales.nbytes
        if weight.bias is not None:
            numbers.append(weight.bias)
    sizes["vectors"] = sum(round_up(len(v), TILE_ROWS) * v.itemsize for v in numbers)
    return sizes


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
