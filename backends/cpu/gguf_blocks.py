"""A GGUF's parameters, its blocks of four and of eight bits as they are.

A block of Q4_0 stands for ``d * (q - 8)`` and one of Q8_0 for ``d * q``: kept bit for
bit, also a q of -128, which llama.cpp does not write. One of Q4_1 stands for ``d * q +
m``: of these d and q are kept; what a q of 8 stands for is rounded to bfloat16, by a
256th of it at most. One of Q4_K stands for ``d * s * q - d' * s'`` in eight groups, s
and s' of six bits: ``d * s`` is rounded to float16, which has eleven of the up to
seventeen bits, and what a q of 8 stands for as in Q4_1.

Source: llama.cpp, ``ggml-common.h`` (``block_q4_0``, ``block_q4_1``, ``block_q4_K``,
``block_q8_0``).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import gguf
import numpy as np
from numpy.typing import NDArray

from hybrid.backends.checkpoint.gguf_header import read_gguf_header
from hybrid.backends.checkpoint.gguf_weights import dequantize, find_gguf_parameters
from hybrid.scheduler.errors import CheckpointError

from .abi import Format
from .weight_packing import INT4_MIDDLE, EightBitGroups, FourBitGroups, to_bfloat16

_TYPE: Final = gguf.GGMLQuantizationType
_Blocks = NDArray[np.void]
_Groups = TypeVar("_Groups", FourBitGroups, EightBitGroups)


class GGUFParameters:
    """Parameters of a GGUF, by transformers' names.

    Args:
        path: the file.
        config: config.json of its conversion.

    Raises:
        CheckpointError: the file is at fault; names the entry.
    """

    def __init__(self, path: Path, config: dict[str, object]) -> None:
        header = read_gguf_header(path)
        found = find_gguf_parameters(header, config)
        self._path: Final = path
        self._found: Final = {parameter.name: parameter for parameter in found}
        self._data: Final = np.asarray(np.memmap(path, np.uint8, "r"))

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See ``Parameters``."""
        return {name: found.tensor.shape for name, found in self._found.items()}

    def read(self, name: str, rows: slice = slice(None)) -> NDArray[np.float32]:
        """See ``Parameters``."""
        found = self._found[name]
        if len(found.tensor.shape) > 1:
            matrix = dequantize(self._rows(name, rows), found.tensor.type)
            return np.asarray(matrix, np.float32)
        numbers = dequantize(self._rows(name, slice(None)), found.tensor.type)[0]
        order = found.row_order()
        ordered = numbers if order is None else numbers[order]
        return np.asarray(ordered[rows], np.float32)

    def group_format(self, name: str) -> Format | None:
        """See ``Parameters``."""
        kind = self._found[name].tensor.type
        if kind in _INT4_READERS:
            return Format.INT4
        return Format.INT8 if kind == _TYPE.Q8_0 else None

    def read_int4(self, name: str, rows: slice = slice(None)) -> FourBitGroups:
        """See ``Parameters``."""
        read = _INT4_READERS[self._found[name].tensor.type]
        return self._checked(name, read(self._rows(name, rows)))

    def read_int8(self, name: str, rows: slice = slice(None)) -> EightBitGroups:
        """See ``Parameters``."""
        return self._checked(name, _read_q8_0(self._rows(name, rows)))

    def _checked(self, name: str, groups: _Groups) -> _Groups:
        if not groups.is_finite:
            kind = self._found[name].tensor.type
            raise CheckpointError(
                f"{self._path}: {name} ({kind.name}) has a scale that is no finite "
                "float16"
            )
        return groups

    def _rows(self, name: str, rows: slice) -> NDArray[np.uint8]:
        """Bytes of some rows in transformers' order: ``[N, bytes of a row]``."""
        found = self._found[name]
        tensor = found.tensor
        is_matrix = len(tensor.shape) > 1
        end = tensor.offset_bytes + tensor.num_bytes
        num_rows = tensor.shape[0] if is_matrix else 1
        stored = self._data[tensor.offset_bytes : end].reshape(num_rows, -1)
        order = found.row_order() if is_matrix else None
        return stored[rows] if order is None else stored[order[rows]]


def _read_q4_0(rows: NDArray[np.uint8]) -> FourBitGroups:
    blocks = _blocks(rows, [("d", "<f2"), ("qs", "u1", 16)])
    d = blocks["d"]
    return FourBitGroups(_nibbles(blocks["qs"], 16), d, np.zeros(d.shape, np.uint16))


def _read_q4_1(rows: NDArray[np.uint8]) -> FourBitGroups:
    blocks = _blocks(rows, [("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])
    d, m = blocks["d"], blocks["m"].astype(np.float32)
    return FourBitGroups(
        _nibbles(blocks["qs"], 16), d, _middle(d.astype(np.float32), m)
    )


def _read_q4_k(rows: NDArray[np.uint8]) -> FourBitGroups:
    fields = [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)]
    blocks = _blocks(rows, fields)
    scales, mins = _six_bits(blocks["scales"])
    with np.errstate(over="ignore", invalid="ignore"):
        d = blocks["d"][..., None].astype(np.float32) * scales
        m = blocks["dmin"][..., None].astype(np.float32) * -mins.astype(np.float32)
        return FourBitGroups(
            _nibbles(blocks["qs"], 32),
            d.reshape(len(rows), -1).astype(np.float16),
            _middle(d, m).reshape(len(rows), -1),
        )


def _middle(d: NDArray[np.float32], m: NDArray[np.float32]) -> NDArray[np.uint16]:
    """What a q of 8 stands for."""
    with np.errstate(over="ignore", invalid="ignore"):
        return to_bfloat16(m + d * np.float32(INT4_MIDDLE))


def _read_q8_0(rows: NDArray[np.uint8]) -> EightBitGroups:
    blocks = _blocks(rows, [("d", "<f2"), ("qs", "i1", 32)])
    return EightBitGroups(blocks["qs"].reshape(len(rows), -1), blocks["d"])


_INT4_READERS: Final[
    Mapping[gguf.GGMLQuantizationType, Callable[..., FourBitGroups]]
] = {
    _TYPE.Q4_0: _read_q4_0,
    _TYPE.Q4_1: _read_q4_1,
    _TYPE.Q4_K: _read_q4_k,
}


def _blocks(rows: NDArray[np.uint8], fields: list[Any]) -> _Blocks:
    """``[N, blocks of a row]``."""
    blocks: _Blocks = np.ascontiguousarray(rows).view(np.dtype(fields))
    return blocks


def _nibbles(packed: NDArray[np.uint8], run: int) -> NDArray[np.uint8]:
    """``[N, K]``: of each ``run`` bytes first the low nibbles, then the high ones."""
    runs = packed.reshape(len(packed), -1, 1, run)
    return np.concatenate((runs & 15, runs >> 4), axis=2).reshape(len(packed), -1)


def _six_bits(packed: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Eight scales and eight mins of each block from its twelve bytes.

    The first four of either are the low six bits of a byte; the last four have their
    low bits in the nibbles of the last four bytes, their high bits in what is left.
    """
    first, second, low = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    return (
        np.concatenate((first & 63, low & 15 | first >> 6 << 4), axis=-1),
        np.concatenate((second & 63, low >> 4 | second >> 6 << 4), axis=-1),
    )
