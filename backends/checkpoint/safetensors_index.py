"""Checks a directory's safetensors files by their headers, before anything loads them.

A missing shard, a truncated one, a tensor that is nowhere or in two places:
transformers would report some late and some never. Reads headers only, in milliseconds.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeGuard

from hybrid.scheduler.errors import CheckpointError
from hybrid.scheduler.shown_value import shown

from .json_file import without_duplicates

INDEX_NAME: Final = "model.safetensors.index.json"
SINGLE_NAME: Final = "model.safetensors"
_MAX_HEADER_BYTES: Final = 100_000_000  # safetensors' own limit
_MAX_DIMENSIONS: Final = 64
_MAX_NAME_CHARACTERS: Final = 1000
_DTYPE_BITS: Final = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "C64": 64,
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor in one file."""

    name: str
    dtype: str
    """As safetensors spells it."""
    shape: tuple[int, ...]
    start_bytes: int
    """From the start of the file."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsSummary:
    """What a directory's weights are."""

    files: tuple[Path, ...]
    tensors: Mapping[str, tuple[str, tuple[int, ...]]] = field(repr=False)
    """By name: dtype as safetensors spells it, and shape."""
    num_bytes: int
    """Of all weights."""


def check_safetensors(directory: Path) -> SafetensorsSummary:
    """Check that every weight is there once and whole.

    Raises:
        CheckpointError: names the file or tensor at fault.
    """
    index = _read_index(directory)
    if index is None:
        files = [directory / SINGLE_NAME]
        if not files[0].is_file():
            raise CheckpointError(_no_weights(directory))
    else:
        files = [directory / name for name in sorted(set(index.values()))]
        _refuse_second_model(directory, files)
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    places: dict[str, Path] = {}
    num_bytes = 0
    for file in files:
        for entry in read_safetensors_header(file):
            name = entry.name
            if name in places:
                raise CheckpointError(
                    f"tensor {name} is in both {places[name]} and {file}"
                )
            places[name] = file
            tensors[name] = (entry.dtype, entry.shape)
            num_bytes += entry.num_bytes
    if index is not None:
        _check_index(directory, index, places)
    return SafetensorsSummary(tuple(files), tensors, num_bytes)


def _refuse_second_model(directory: Path, files: list[Path]) -> None:
    """Which of the two is loaded depends on who loads; they may differ."""
    single = directory / SINGLE_NAME
    if single.is_file() and files != [single]:
        raise CheckpointError(
            f"{directory} has both {SINGLE_NAME} and {INDEX_NAME}, which names "
            f"{files[0].name}: every weight would be there twice; remove one of the two"
        )


def _no_weights(directory: Path) -> str:
    if not directory.is_dir():
        return f"{directory} is no directory"
    others = sorted(
        file.name
        for file in directory.iterdir()
        if file.suffix in {".bin", ".pt", ".pth", ".gguf", ".safetensors"}
    )
    found = f"; it has {', '.join(others)}" if others else ""
    return f"{directory} has neither {SINGLE_NAME} nor {INDEX_NAME}{found}"


def _read_index(directory: Path) -> dict[str, str] | None:
    path = directory / INDEX_NAME
    if not path.is_file():
        return None
    try:
        text = path.read_text(encoding="utf-8")
        index = json.loads(text, object_pairs_hook=without_duplicates)
        weight_map = index["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is no index of safetensors: {shown(error)}"
        ) from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} is no index of safetensors: weight_map is empty")
    for name, file in weight_map.items():
        # A shard lies in the model's own directory, never elsewhere.
        if not isinstance(file, str) or Path(file).name != file or not file.strip("."):
            raise CheckpointError(
                f"{path}: tensor {shown(name)} is in {shown(file)}, no file name"
            )
    return weight_map


def _check_index(
    directory: Path, index: Mapping[str, str], places: Mapping[str, Path]
) -> None:
    for name, file in index.items():
        if name not in places:
            raise CheckpointError(
                f"{directory / INDEX_NAME} says that tensor {name} is in {file}, which "
                "lacks it"
            )
        if places[name].name != file:
            raise CheckpointError(
                f"{directory / INDEX_NAME} says that tensor {name} is in {file}, but "
                f"it is in {places[name].name}"
            )
    if extra := sorted(places.keys() - index.keys()):
        raise CheckpointError(
            f"{places[extra[0]]} has tensor {extra[0]}, which {INDEX_NAME} does not "
            "name"
        )


def read_safetensors_header(file: Path) -> list[TensorEntry]:
    """Say what is in one file, and where; every tensor lies within it.

    Raises:
        CheckpointError: the file is missing, truncated or none of safetensors.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
                raise CheckpointError(
                    f"{file} is truncated or no safetensors file: its header is said "
                    f"to have {length} bytes, the file has {size}"
                )
            header = json.loads(
                stream.read(length), object_pairs_hook=without_duplicates
            )
    except OSError as error:
        raise CheckpointError(f"{file} is missing or unreadable: {error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is no safetensors file: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{file} is no safetensors file: its header is no object")
    header.pop("__metadata__", None)
    return [
        _check_entry(file, name, entry, 8 + length, size)
        for name, entry in header.items()
    ]


def _check_entry(
    file: Path, name: str, entry: object, data_start: int, file_bytes: int
) -> TensorEntry:
    if len(name) > _MAX_NAME_CHARACTERS:
        raise CheckpointError(f"{file}: a tensor's name has {len(name)} characters")
    dtype, shape, (start, end) = _fields(file, name, entry)
    size = (math.prod(shape) * _DTYPE_BITS[dtype] + 7) // 8
    if start > end or size != end - start:
        raise CheckpointError(
            f"{file}: tensor {name}, {dtype} of shape {shown(shape)}, needs "
            f"{shown(size)} bytes, its entry says {shown(start)} to {shown(end)}"
        )
    data_bytes = file_bytes - data_start
    if end > data_bytes:
        raise CheckpointError(
            f"{file} is truncated: tensor {name} ends at byte {shown(end)} of the "
            f"weights, the file has {data_bytes}"
        )
    return TensorEntry(name, dtype, shape, data_start + start, size)


def _fields(
    file: Path, name: str, entry: object
) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    if isinstance(entry, dict):
        dtype, shape = entry.get("dtype"), entry.get("shape")
        offsets = entry.get("data_offsets")
        if (
            isinstance(dtype, str)
            and dtype in _DTYPE_BITS
            and _are_sizes(shape)
            and len(shape) <= _MAX_DIMENSIONS
            and _are_sizes(offsets)
            and len(offsets) == 2
        ):
            return dtype, tuple(shape), (offsets[0], offsets[1])
    raise CheckpointError(
        f"{file}: the entry of tensor {name} makes no sense: {shown(entry)}"
    )


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        type(item) is int and item >= 0 for item in value
    )
