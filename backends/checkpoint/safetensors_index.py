"""Checks a directory's safetensors files by their headers, before anything loads them.

A missing shard, a truncated one, a tensor that is nowhere or in two places:
transformers would report some late and some never. Reads headers only, in milliseconds.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hybrid.scheduler.errors import CheckpointError

INDEX_NAME: Final = "model.safetensors.index.json"
SINGLE_NAME: Final = "model.safetensors"
_MAX_HEADER_BYTES: Final = 100_000_000  # safetensors' own limit
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
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    places: dict[str, Path] = {}
    num_bytes = 0
    for file in files:
        for name, dtype, shape, size in _read_header(file):
            if name in places:
                raise CheckpointError(
                    f"tensor {name} is in both {places[name]} and {file}"
                )
            places[name] = file
            tensors[name] = (dtype, shape)
            num_bytes += size
    if index is not None:
        _check_index(directory, index, places)
    return SafetensorsSummary(tuple(files), tensors, num_bytes)


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
        weight_map = json.loads(path.read_text())["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is no index of safetensors: {error!r}"
        ) from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} is no index of safetensors: weight_map is empty")
    for name, file in weight_map.items():
        # A shard lies in the model's own directory, never elsewhere.
        if not isinstance(file, str) or Path(file).name != file or not file.strip("."):
            raise CheckpointError(f"{path}: tensor {name} is in {file!r}, no file name")
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


def _read_header(file: Path) -> list[tuple[str, str, tuple[int, ...], int]]:
    """Name, dtype, shape and bytes of each tensor in one file."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
                raise CheckpointError(
                    f"{file} is truncated or no safetensors file: its header is said "
                    f"to have {length} bytes, the file has {size}"
                )
            header = json.loads(stream.read(length))
    except OSError as error:
        raise CheckpointError(f"{file} is missing or unreadable: {error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is no safetensors file: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{file} is no safetensors file: its header is no object")
    header.pop("__metadata__", None)
    return [
        _check_entry(file, name, entry, size - 8 - length)
        for name, entry in header.items()
    ]


def _check_entry(
    file: Path, name: str, entry: object, data_bytes: int
) -> tuple[str, str, tuple[int, ...], int]:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])  # type: ignore[index]
        start, end = entry["data_offsets"]  # type: ignore[index]
        size = (math.prod(shape) * _DTYPE_BITS[dtype] + 7) // 8
        consistent = 0 <= start <= end and size == end - start
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{file}: the entry of tensor {name} makes no sense: {error!r}"
        ) from error
    if not consistent:
        raise CheckpointError(
            f"{file}: tensor {name}, {dtype} of shape {shape}, needs {size} bytes, its "
            f"entry says {start} to {end}"
        )
    if end > data_bytes:
        raise CheckpointError(
            f"{file} is truncated: tensor {name} ends at byte {end} of the weights, "
            f"the file has {data_bytes}"
        )
    return name, dtype, shape, size
