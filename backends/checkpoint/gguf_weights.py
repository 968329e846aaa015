"""A GGUF's weights as one safetensors file: renamed, dequantised, rows put back.

One tensor a thread at a time, written at its place in the file, so that memory holds a
few tensors and never the model.
"""

import errno
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

import gguf
import numpy as np
import numpy.typing as npt

from hybrid.backends.interface import ProgressCallback
from hybrid.scheduler.errors import CheckpointError

from .gguf_config import Architecture, find_architecture
from .gguf_header import GGUFHeader, GGUFTensor
from .gguf_parameters import expected_parameters
from .gguf_rope import ROPE_FACTORS

_TYPE: Final = gguf.GGMLQuantizationType
_PLAIN: Final = {_TYPE.F32: "<f4", _TYPE.F16: "<f2", _TYPE.F64: "<f8"}
_SAFETENSORS_DTYPE: Final = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_CHUNK_ELEMENTS: Final = 1 << 21
"""Dequantised at once: what stays near the processor's caches."""
_THREADS: Final = min(8, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class GGUFParameter:
    """One parameter of the model, and where its numbers stand in the GGUF."""

    name: str
    """In Hugging Face's words."""
    tensor: GGUFTensor
    num_rotary_heads: int | None
    """Heads whose rows are interleaved; ``None``: rows are in order."""

    def row_order(self) -> npt.NDArray[np.intp] | None:
        """Where each row stands in the GGUF; ``None``: rows are in order.

        A head's rows are ``x0 .. xn y0 .. yn`` in Hugging Face's order, where rotation
        mixes x and y of one index, and ``x0 y0 .. xn yn`` in llama.cpp's.

        Source: llama.cpp ``convert_hf_to_gguf.py``, ``LlamaModel.permute``.
        """
        if self.num_rotary_heads is None:
            return None
        rows, heads = self.tensor.shape[0], self.num_rotary_heads
        stored = np.arange(rows).reshape(heads, rows // heads // 2, 2)
        return stored.swapaxes(1, 2).reshape(rows)


@dataclass(frozen=True, slots=True)
class _Place:
    """One parameter's way from the GGUF into the safetensors file."""

    parameter: GGUFParameter
    start_bytes: int
    end_bytes: int


def write_gguf_weights(
    header: GGUFHeader,
    config: dict[str, object],
    path: Path,
    progress: ProgressCallback | None = None,
) -> None:
    """Write all weights as ``config["dtype"]`` to ``path``.

    Raises:
        CheckpointError: a tensor is missing, unknown, of a wrong shape, or of a type
            that cannot be dequantised; names it.
    """
    dtype = str(config["dtype"])
    places = _places(find_gguf_parameters(header, config), dtype)
    preamble = _preamble(places, dtype)
    total = sum(place.parameter.tensor.num_bytes for place in places)
    done = 0
    data = np.asarray(np.memmap(header.path, np.uint8, "r"))
    with path.open("wb") as target, ThreadPoolExecutor(_THREADS) as pool:
        target.write(preamble)
        target.truncate(len(preamble) + places[-1].end_bytes)
        target.flush()
        copy = _Copy(header.path, data, dtype, target.fileno(), len(preamble))
        jobs = {pool.submit(copy.run, place): place for place in places}
        try:
            for job in as_completed(jobs):
                job.result()
                done += jobs[job].parameter.tensor.num_bytes
                if progress is not None:
                    progress("convert", done, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def find_gguf_parameters(
    header: GGUFHeader, config: dict[str, object]
) -> list[GGUFParameter]:
    """Find the tensor of every parameter.

    Args:
        header: of the file.
        config: what ``gguf_config`` made of it.

    Raises:
        CheckpointError: a tensor is missing, unknown, of a wrong shape, or of a type
            that cannot be dequantised; names it.
    """
    architecture = find_architecture(header)
    left = dict(header.tensors)
    left.pop(ROPE_FACTORS, None)  # stands in the config
    found: list[GGUFParameter] = []
    names = _gguf_names(header, config)
    for name, shape in expected_parameters(architecture, config).items():
        source = names.get_name(name, try_suffixes=(".weight", ".bias"))
        tensor = left.pop(source, None)
        if tensor is None:
            raise CheckpointError(f"{header.path}: tensor {source} ({name}) is missing")
        if tensor.shape != shape:
            raise CheckpointError(
                f"{header.path}: tensor {source} has shape {tensor.shape}; the "
                f"metadata ask for {shape}"
            )
        _check_type(header, tensor)
        heads = _rotary_heads(architecture, name, config)
        found.append(GGUFParameter(name, tensor, heads))
    if left:
        raise CheckpointError(
            f"{header.path}: tensors that no {architecture.model_type} model has: "
            f"{', '.join(sorted(left))}"
        )
    return found


def _places(parameters: list[GGUFParameter], dtype: str) -> list[_Place]:
    places: list[_Place] = []
    start = 0
    for parameter in parameters:
        size = math.prod(parameter.tensor.shape) * (4 if dtype == "float32" else 2)
        places.append(_Place(parameter, start, start + size))
        start += size
    return places


def _gguf_names(header: GGUFHeader, config: dict[str, object]) -> Any:
    """The gguf package's own map from Hugging Face names to its own."""
    name = header.text("general.architecture")
    arch = next(arch for arch, text in gguf.MODEL_ARCH_NAMES.items() if text == name)
    return gguf.get_tensor_name_map(arch, cast("int", config["num_hidden_layers"]))


def _rotary_heads(
    architecture: Architecture, name: str, config: dict[str, object]
) -> int | None:
    if not architecture.permutes_rotary_rows:
        return None
    part = name.rsplit(".", 2)[-2]
    key = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(part)
    return None if key is None else cast("int", config[key])


def _check_type(header: GGUFHeader, tensor: GGUFTensor) -> None:
    if _can_dequantize(tensor.type):
        return
    supported = ", ".join(kind.name for kind in _TYPE if _can_dequantize(kind))
    raise CheckpointError(
        f"{header.path}: tensor {tensor.name} has type {tensor.type.name}, which "
        f"cannot be dequantised; supported: {supported}"
    )


@cache
def _can_dequantize(kind: gguf.GGMLQuantizationType) -> bool:
    if kind in _PLAIN:
        return True
    block = np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    try:
        gguf.dequantize(block, kind)
    except NotImplementedError:
        return False
    return True


def _preamble(places: list[_Place], dtype: str) -> bytes:
    """Everything in front of the weights.

    Source: https://github.com/huggingface/safetensors, "Format".
    """
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for place in places:
        entries[place.parameter.name] = {
            "dtype": _SAFETENSORS_DTYPE[dtype],
            "shape": place.parameter.tensor.shape,
            "data_offsets": (place.start_bytes, place.end_bytes),
        }
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)  # weights start aligned
    return len(text).to_bytes(8, "little") + text


@dataclass(frozen=True, slots=True)
class _Copy:
    """Copies tensors from one file to the other."""

    path: Path
    data: npt.NDArray[np.uint8]
    """The whole source file."""
    dtype: str
    target: int
    """File descriptor."""
    offset_bytes: int
    """Where the weights start in the target."""

    def run(self, place: _Place) -> None:
        """Dequantise one tensor and write it at its place, a few rows at a time."""
        tensor = place.parameter.tensor
        num_rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
        end = tensor.offset_bytes + tensor.num_bytes
        rows = self.data[tensor.offset_bytes : end].reshape(num_rows, -1)
        order = place.parameter.row_order()
        step = max(1, _CHUNK_ELEMENTS * num_rows // math.prod(tensor.shape))
        position = self.offset_bytes + place.start_bytes
        for first in range(0, num_rows, step):
            part = slice(first, first + step)
            if order is None:
                chunk = dequantize(rows[part], tensor.type)
            elif num_rows == 1:  # a bias: its rows are its numbers
                chunk = dequantize(rows, tensor.type)[:, order]
            else:  # a quantised row stays whole
                chunk = dequantize(rows[order[part]], tensor.type)
            encoded = _encode(chunk, self.dtype, f"{self.path}: tensor {tensor.name}")
            if os.pwrite(self.target, encoded, position) != len(encoded):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            position += len(encoded)


def dequantize(
    rows: npt.NDArray[np.uint8], kind: gguf.GGMLQuantizationType
) -> npt.NDArray[np.floating]:
    """Turn rows of bytes into rows of numbers, exactly."""
    if kind in _PLAIN:
        return np.ascontiguousarray(rows).view(_PLAIN[kind])
    # A NaN or infinite scale is the file's own business, not worth a warning a block.
    with np.errstate(all="ignore"):
        values: npt.NDArray[np.float32] = gguf.dequantize(rows, kind)
    return values


def _encode(values: npt.NDArray[np.floating], dtype: str, what: str) -> memoryview:
    """Turn numbers into the bytes of ``dtype``, rounding to nearest even."""
    kind = "<f2" if dtype == "float16" else "<f4"
    try:
        with np.errstate(over="raise", invalid="ignore"):
            cast_values = np.ascontiguousarray(values, kind)
    except FloatingPointError as error:
        raise CheckpointError(
            f"{what} has numbers above {np.finfo(kind).max:g}, the limit of "
            f"{np.dtype(kind).name}; use another dtype"
        ) from error
    if dtype == "bfloat16":
        return np.ascontiguousarray(gguf.quantize(cast_values, _TYPE.BF16)).data.cast(
            "B"
        )
    return cast_values.data.cast("B")
