"""The header of a GGUF file: metadata and the table of tensors, read once and bounded.

Knows nothing of what the metadata mean. (``gguf.GGUFReader`` trusts the header and
spends 1.6 s on 49 thousand tokens; tests hold this reader against it.)
"""

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import gguf
import numpy as np
import numpy.typing as npt

from hybrid.scheduler.errors import CheckpointError

from .gguf_cursor import GGUFCursor, MetadataValue

MAX_DIMENSIONS: Final = 4
_MIN_TENSOR_ENTRY_BYTES: Final = 8 + 4 + 4 + 8
_MIN_METADATA_ENTRY_BYTES: Final = 8 + 4 + 1
_VERSIONS: Final = (2, 3)


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One entry of the tensor table."""

    name: str
    shape: tuple[int, ...]
    """numpy's order, rows first: the reverse of what the file says."""
    type: gguf.GGMLQuantizationType
    offset_bytes: int
    """From the start of the file."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What a GGUF file says about itself."""

    path: Path
    metadata: Mapping[str, MetadataValue] = field(repr=False)
    tensors: Mapping[str, GGUFTensor] = field(repr=False)

    def integer(self, key: str) -> int | None:
        """The integer under ``key``, ``None`` if absent.

        Raises:
            CheckpointError: it is no integer.
        """
        value = self.metadata.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise CheckpointError(f"{self.path}: {key} is no integer: {value!r:.80}")

    def number(self, key: str) -> float | None:
        """The number under ``key``, ``None`` if absent.

        Raises:
            CheckpointError: it is no number.
        """
        value = self.metadata.get(key)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        raise CheckpointError(f"{self.path}: {key} is no number: {value!r:.80}")

    def text(self, key: str) -> str | None:
        """The string under ``key``, ``None`` if absent.

        Raises:
            CheckpointError: it is no string.
        """
        value = self.metadata.get(key)
        if value is None or isinstance(value, str):
            return value
        raise CheckpointError(f"{self.path}: {key} is no string: {value!r:.80}")

    def flag(self, key: str) -> bool | None:
        """The boolean under ``key``, ``None`` if absent.

        Raises:
            CheckpointError: it is no boolean.
        """
        value = self.metadata.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise CheckpointError(f"{self.path}: {key} is no boolean: {value!r:.80}")

    def strings(self, key: str) -> tuple[str, ...] | None:
        """The list of strings under ``key``, ``None`` if absent.

        Raises:
            CheckpointError: it is no list of strings.
        """
        value = self.metadata.get(key)
        if value is None or isinstance(value, tuple):
            return value
        raise CheckpointError(f"{self.path}: {key} is no list of strings")

    def numbers(self, key: str) -> npt.NDArray[np.generic] | None:
        """The list of numbers under ``key``, ``None`` if absent.

        Raises:
            CheckpointError: it is no list of numbers.
        """
        value = self.metadata.get(key)
        if value is None or isinstance(value, np.ndarray):
            return value
        raise CheckpointError(f"{self.path}: {key} is no list of numbers")


def read_gguf_header(path: Path) -> GGUFHeader:
    """Read and check the header of a GGUF file; no weight is read.

    Raises:
        CheckpointError: not a GGUF file, of a version or byte order that is not
            supported, split, truncated, or in contradiction with itself; the message
            names the entry at fault.
    """
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _parse(GGUFCursor(path, data))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except ValueError as error:  # mmap says so of an empty file
        raise CheckpointError(f"{path} is empty") from error


def _parse(cursor: GGUFCursor) -> GGUFHeader:
    _check_version(cursor)
    num_tensors = cursor.count("the number of tensors", _MIN_TENSOR_ENTRY_BYTES)
    num_entries = cursor.count("the number of entries", _MIN_METADATA_ENTRY_BYTES)
    metadata: dict[str, MetadataValue] = {}
    for index in range(num_entries):
        key = cursor.string(f"the name of metadata entry {index}")
        if key in metadata:
            raise CheckpointError(f"{cursor.path}: {key} is there twice")
        metadata[key] = cursor.value(cursor.u32(key), key)
    header = GGUFHeader(cursor.path, metadata, {})
    if (parts := header.integer("split.count") or 1) > 1:
        raise CheckpointError(
            f"{cursor.path} is one of {parts} parts of a split model; merge them into "
            "one file first (llama.cpp: llama-gguf-split --merge)"
        )
    return GGUFHeader(cursor.path, metadata, _tensors(cursor, header, num_tensors))


def _check_version(cursor: GGUFCursor) -> None:
    start = cursor.take(4, "the magic number")
    if (magic := cursor.data[start : start + 4]) != b"GGUF":
        raise CheckpointError(
            f"{cursor.path} is not a GGUF file: it starts with {magic!r}, not b'GGUF'"
        )
    version = cursor.u32("the version")
    if version & 0xFFFF == 0:
        raise CheckpointError(
            f"{cursor.path} is a big-endian GGUF file; only little-endian is supported"
        )
    if version not in _VERSIONS:
        raise CheckpointError(
            f"{cursor.path} is GGUF version {version}; supported: "
            f"{', '.join(map(str, _VERSIONS))}"
        )


def _tensors(
    cursor: GGUFCursor, header: GGUFHeader, num_tensors: int
) -> dict[str, GGUFTensor]:
    alignment = header.integer("general.alignment") or gguf.GGUF_DEFAULT_ALIGNMENT
    if alignment <= 0 or alignment & (alignment - 1):
        raise CheckpointError(
            f"{cursor.path}: general.alignment is {alignment}, no power of two"
        )
    tensors: dict[str, GGUFTensor] = {}
    for index in range(num_tensors):
        tensor = _tensor(cursor, index)
        if tensor.name in tensors:
            raise CheckpointError(f"{cursor.path}: tensor {tensor.name} is there twice")
        tensors[tensor.name] = tensor
    data_start = -(-cursor.position // alignment) * alignment
    for name, tensor in tensors.items():
        tensors[name] = placed = GGUFTensor(
            name,
            tensor.shape,
            tensor.type,
            data_start + tensor.offset_bytes,
            tensor.num_bytes,
        )
        end = placed.offset_bytes + placed.num_bytes
        if end > len(cursor.data):
            raise CheckpointError(
                f"{cursor.path} is truncated: tensor {name} ends at byte {end}, the "
                f"file has {len(cursor.data)}"
            )
    return tensors


def _tensor(cursor: GGUFCursor, index: int) -> GGUFTensor:
    name = cursor.string(f"the name of tensor {index}")
    num_dimensions = cursor.u32(name)
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise CheckpointError(
            f"{cursor.path} is corrupt: tensor {name} has {num_dimensions} dimensions, "
            f"not 1 to {MAX_DIMENSIONS}"
        )
    shape = tuple(cursor.u64(name) for _ in range(num_dimensions))[::-1]
    type_id = cursor.u32(name)
    offset = cursor.u64(name)
    try:
        type_ = gguf.GGMLQuantizationType(type_id)
    except ValueError as error:
        known = ", ".join(kind.name for kind in gguf.GGMLQuantizationType)
        raise CheckpointError(
            f"{cursor.path}: tensor {name} has unknown type {type_id}; known: {known}"
        ) from error
    block, block_bytes = gguf.GGML_QUANT_SIZES[type_]
    if shape[-1] % block or 0 in shape:
        raise CheckpointError(
            f"{cursor.path} is corrupt: tensor {name} has shape {shape}, but its type "
            f"{type_.name} comes in rows of a multiple of {block}"
        )
    num_elements = 1
    for size in shape:
        num_elements *= size
    return GGUFTensor(name, shape, type_, offset, num_elements // block * block_bytes)
