"""Reads GGUF's primitive values from a mapped file, in bounds.

Every count and length is checked against the bytes that the file has before anything is
allocated for it, so that a hostile or truncated header costs no memory and no time.
"""

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import gguf
import numpy as np
import numpy.typing as npt

from hybrid.scheduler.errors import CheckpointError

_MAX_ARRAY_DEPTH: Final = 4

MetadataValue = (
    int | float | bool | str | tuple[str, ...] | npt.NDArray[np.generic] | list[object]
)

_STRING: Final = int(gguf.GGUFValueType.STRING)
_ARRAY: Final = int(gguf.GGUFValueType.ARRAY)
_BOOL: Final = int(gguf.GGUFValueType.BOOL)
_SCALARS: Final[Mapping[int, np.dtype[np.generic]]] = {
    int(gguf.GGUFValueType[name]): np.dtype(code)
    for name, code in (
        ("UINT8", "u1"),
        ("INT8", "i1"),
        ("UINT16", "<u2"),
        ("INT16", "<i2"),
        ("UINT32", "<u4"),
        ("INT32", "<i4"),
        ("FLOAT32", "<f4"),
        ("BOOL", "?"),
        ("UINT64", "<u8"),
        ("INT64", "<i8"),
        ("FLOAT64", "<f8"),
    )
}


class GGUFCursor:
    """A position in the file that only moves forward; all values are little-endian.

    Every method raises ``CheckpointError``, naming what was read, where the file
    ends too early or holds what cannot be.
    """

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.position = 0

    @property
    def left_bytes(self) -> int:
        """Bytes between the position and the end of the file."""
        return len(self.data) - self.position

    def take(self, num_bytes: int, what: str) -> int:
        """Move over ``num_bytes`` bytes and return where they start."""
        if num_bytes > self.left_bytes:
            raise CheckpointError(
                f"{self.path} is truncated or corrupt: {what} needs {num_bytes} bytes "
                f"at byte {self.position}, the file has {self.left_bytes} more"
            )
        start = self.position
        self.position += num_bytes
        return start

    def u32(self, what: str) -> int:
        """Read a uint32; ``what`` names it in an error."""
        value: int = struct.unpack_from("<I", self.data, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        """Read a uint64; ``what`` names it in an error."""
        value: int = struct.unpack_from("<Q", self.data, self.take(8, what))[0]
        return value

    def count(self, what: str, min_entry_bytes: int) -> int:
        """Read a count of entries that must fit into what is left of the file."""
        value = self.u64(what)
        if value * min_entry_bytes > self.left_bytes:
            raise CheckpointError(
                f"{self.path} is truncated or corrupt: {what} is {value}, more than "
                f"the {self.left_bytes} bytes left in the file can hold"
            )
        return value

    def string(self, what: str) -> str:
        """Read a length and as many bytes of UTF-8."""
        length = self.u64(what)
        start = self.take(length, what)
        try:
            return self.data[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"{self.path} is corrupt: {what} is no UTF-8 text ({error.reason})"
            ) from error

    def value(self, kind: int, key: str, depth: int = 0) -> MetadataValue:
        """Read the value of ``key``, of GGUF's value type ``kind``."""
        if kind == _STRING:
            return self.string(key)
        if kind == _ARRAY:
            return self._array(key, depth)
        dtype = self._scalar(kind, key)
        start = self.take(dtype.itemsize, key)
        item = np.frombuffer(self.data, dtype, 1, start)[0].item()
        return bool(item) if kind == _BOOL else item

    def _scalar(self, kind: int, key: str) -> np.dtype[np.generic]:
        if kind not in _SCALARS:
            raise CheckpointError(
                f"{self.path} is corrupt: {key} has value type {kind}"
            )
        return _SCALARS[kind]

    def _array(self, key: str, depth: int) -> MetadataValue:
        if depth >= _MAX_ARRAY_DEPTH:
            raise CheckpointError(
                f"{self.path} is corrupt: {key} nests lists deeper than "
                f"{_MAX_ARRAY_DEPTH}"
            )
        kind = self.u32(key)
        if kind == _STRING:
            length = self.count(f"the length of {key}", 8)
            return tuple(self.string(key) for _ in range(length))
        if kind == _ARRAY:
            length = self.count(f"the length of {key}", 12)
            return [self._array(key, depth + 1) for _ in range(length)]
        dtype = self._scalar(kind, key)
        length = self.count(f"the length of {key}", dtype.itemsize)
        start = self.take(length * dtype.itemsize, key)
        return np.frombuffer(self.data, dtype, length, start).copy()
