"""Writes the packed weights of an engine, one after the other, a few rows at a time.

Every array is a multiple of 64 bytes and the first starts at one, so all are aligned
without gaps, which safetensors does not allow.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.usable_cpus import num_usable_cpus
from hybrid.scheduler.errors import CheckpointError

from .abi import ALIGNMENT_BYTES, Format
from .parameters import Parameters
from .plan import WeightSpec
from .quantize_weights import (
    MAX_INT4_WEIGHT,
    MAX_INT8_WEIGHT,
    quantize_int4,
    quantize_int8,
)
from .weight_packing import (
    GROUP,
    TILE_ROWS,
    EightBitGroups,
    joined,
    pack_bfloat16,
    pack_float32,
    pack_int4,
    pack_int8,
    packed_bytes,
    packed_scales,
    round_up,
)

_CHUNK_ELEMENTS: Final = 1 << 19
"""Packed at once by each thread: what stays near the processor's caches."""
_LIMITS: Final = {Format.INT8: MAX_INT8_WEIGHT, Format.INT4: MAX_INT4_WEIGHT}
_MAX_THREADS: Final = 8

Chunk = Callable[[], NDArray[Any]]
"""Makes some bytes of an array; several threads make some at once, in no order."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One array of the file."""

    name: str
    dtype: str
    length: int
    num_bytes: int
    chunks: Iterable[Chunk]
    """Of its bytes in order."""


@dataclass(frozen=True, slots=True)
class FormattedWeight:
    """A matrix, and the format it gets."""

    spec: WeightSpec
    format: Format
    keeps_groups: bool = False
    """Its four-bit groups are taken as they are stored."""
    importance: NDArray[np.float32] | None = field(default=None, repr=False)
    """Of int4 that is made here: see ``quantize_int4``."""


def write_weights(
    path: Path,
    parameters: Parameters,
    weights: tuple[FormattedWeight, ...],
    vectors: Mapping[str, int],
    progress: Callable[[int, int], None],
) -> None:
    """Write ``weights.safetensors``.

    Args:
        path: of the file.
        parameters: what is packed.
        weights: the matrices, and how.
        vectors: norms by name, and how long they are.
        progress: told of bytes written, and of all.

    Raises:
        CheckpointError: a number is not finite, or too large for a scale.
        OSError: it cannot be written; says how many bytes it takes.
    """
    entries = [
        entry for weight in weights for entry in _weight_entries(parameters, weight)
    ]
    for name, length in vectors.items():
        entries.append(_vector_entry(name, (name,), length, parameters))
    total = sum(entry.num_bytes for entry in entries)
    done = 0
    try:
        with path.open("wb") as file:
            file.write(_preamble(entries))
            for made in _in_order(chunk for entry in entries for chunk in entry.chunks):
                done += file.write(made.data)
                progress(done, total)
    except OSError as error:
        told = f"{error.strerror}; the weights take {total:,} bytes"
        raise OSError(error.errno, told, str(path)) from error


def _in_order(chunks: Iterator[Chunk]) -> Iterator[NDArray[Any]]:
    """Make chunks in several threads, a few ahead of the one that is given."""
    num_threads = min(_MAX_THREADS, num_usable_cpus())
    with ThreadPoolExecutor(num_threads) as pool:
        ahead: deque[Future[NDArray[Any]]] = deque()
        try:
            for chunk in chunks:
                ahead.append(pool.submit(chunk))
                if len(ahead) > num_threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _preamble(entries: list[_Entry]) -> bytes:
    """Everything in front of the arrays.

    Source: https://github.com/huggingface/safetensors, "Format".
    """
    header, start = {}, 0
    for entry in entries:
        end = start + entry.num_bytes
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": [entry.length],
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text


def _weight_entries(
    parameters: Parameters, weight: FormattedWeight
) -> Iterator[_Entry]:
    spec, form = weight.spec, weight.format
    size = packed_bytes(form, spec.rows, spec.columns)
    num_scales = packed_scales(spec.rows, spec.columns) * (form is Format.INT8)
    scales = np.zeros(num_scales, np.float16)
    packing = _Packing(parameters, weight, scales)
    yield _Entry(f"{spec.name}.data", "U8", size, size, packing.chunks())
    if form is Format.INT8:
        # Complete when the matrix is written, and so before they are.
        yield _Entry(
            f"{spec.name}.scales", "F16", len(scales), scales.nbytes, (lambda: scales,)
        )
    if spec.has_bias:
        parts = tuple(f"{part}.bias" for part in spec.parts)
        yield _vector_entry(f"{spec.name}.bias", parts, spec.rows, parameters)


def _vector_entry(
    name: str, parts: tuple[str, ...], length: int, parameters: Parameters
) -> _Entry:
    padded = round_up(length, TILE_ROWS)

    def read() -> NDArray[np.float32]:
        numbers = np.concatenate([parameters.read(part) for part in parts])
        return np.pad(numbers, (0, padded - length))

    return _Entry(name, "F32", padded, padded * 4, (read,))


@dataclass(frozen=True, slots=True)
class _Packing:
    """Packs one matrix, some tiles of rows at a time."""

    parameters: Parameters
    weight: FormattedWeight
    scales: NDArray[np.float16]
    """Of int8, filled on the way."""

    def chunks(self) -> Iterator[Chunk]:
        spec = self.weight.spec
        step = _CHUNK_ELEMENTS // spec.columns // TILE_ROWS * TILE_ROWS or TILE_ROWS
        pack = self._pack_int4 if self.weight.keeps_groups else self._pack_numbers
        if self.weight.format is Format.INT8:
            pack = self._pack_int8
        for start in range(0, spec.rows, step):
            yield partial(pack, slice(start, min(start + step, spec.rows)))

    def _pack_int4(self, rows: slice) -> NDArray[np.uint8]:
        pieces = _pieces(self.weight.spec, rows)
        return pack_int4(joined([self.parameters.read_int4(*p) for p in pieces]))

    def _pack_int8(self, rows: slice) -> NDArray[np.uint8]:
        pieces = _pieces(self.weight.spec, rows)
        data, scales = pack_int8(joined([self._int8_piece(*p) for p in pieces]))
        start = rows.start * (round_up(self.weight.spec.columns, GROUP) // GROUP)
        self.scales[start : start + len(scales)] = scales
        return data

    def _int8_piece(self, name: str, rows: slice) -> EightBitGroups:
        if self.parameters.group_format(name) is Format.INT8:
            return self.parameters.read_int8(name, rows)
        return quantize_int8(self._read(name, rows))

    def _pack_numbers(self, rows: slice) -> NDArray[np.uint8]:
        pieces = _pieces(self.weight.spec, rows)
        matrix = np.concatenate([self._read(*piece) for piece in pieces])
        if self.weight.format is Format.F32:
            return pack_float32(matrix)
        if self.weight.format is Format.BF16:
            return pack_bfloat16(matrix)
        return pack_int4(quantize_int4(matrix, self.weight.importance))

    def _read(self, name: str, rows: slice) -> NDArray[np.float32]:
        """Read numbers that the format can hold."""
        numbers, form = self.parameters.read(name, rows), self.weight.format
        if form in _LIMITS:
            largest = float(np.abs(numbers).max())
            if not math.isfinite(largest):
                raise CheckpointError(f"{name} holds what is no finite number")
            if largest > _LIMITS[form]:
                raise CheckpointError(
                    f"{name} has a number of {largest:g}; {form.name.lower()} holds "
                    f"up to {_LIMITS[form]:g}; use quantization=bf16"
                )
        return numbers


def _pieces(spec: WeightSpec, rows: slice) -> list[tuple[str, slice]]:
    """Say which rows of which parameters some rows of the joined matrix are."""
    pieces, first = [], 0
    for part, num_rows in zip(spec.parts, spec.part_rows, strict=True):
        low, high = max(rows.start - first, 0), min(rows.stop - first, num_rows)
        if low < high:
            pieces.append((f"{part}.weight", slice(low, high)))
        first += num_rows
    return pieces
