"""A model's parameters as numbers, some rows at a time, whatever file they stand in."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.checkpoint.safetensors_index import check_safetensors
from hybrid.backends.checkpoint.safetensors_map import SafetensorsMap
from hybrid.scheduler.errors import UnsupportedFeature

from .abi import Format
from .weight_packing import EightBitGroups, FourBitGroups, from_bfloat16

_DTYPES: Final = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class Parameters(Protocol):
    """Parameters by transformers' names."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of every parameter that the files hold."""
        ...

    def read(self, name: str, rows: slice = slice(None)) -> NDArray[np.float32]:
        """Read some rows, exactly, or all; of a vector its numbers."""
        ...

    def group_format(self, name: str) -> Format | None:
        """Say if a matrix is stored in groups that a kernel reads: INT4 or INT8."""
        ...

    def read_int4(self, name: str, rows: slice = slice(None)) -> FourBitGroups:
        """Read some rows of INT4 as they are stored.

        Raises:
            CheckpointError: a scale is not finite.
        """
        ...

    def read_int8(self, name: str, rows: slice = slice(None)) -> EightBitGroups:
        """Read some rows of INT8 as they are stored.

        Raises:
            CheckpointError: a scale is not finite.
        """
        ...


class SafetensorsParameters:
    """Parameters of a Hugging Face directory.

    Raises:
        CheckpointError: a file is missing, truncated, or contradicts another.
        UnsupportedFeature: numbers are stored in another way than as floats.
    """

    def __init__(self, directory: Path) -> None:
        self._maps: Final[dict[str, SafetensorsMap]] = {}
        for file in check_safetensors(directory).files:
            opened = SafetensorsMap(file)
            self._maps.update(dict.fromkeys(opened.entries, opened))
        for name, opened in self._maps.items():
            if (dtype := opened.entries[name].dtype) not in _DTYPES:
                raise UnsupportedFeature(
                    f"{name} is stored as {dtype}; the build reads {', '.join(_DTYPES)}"
                )

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See ``Parameters``."""
        return {name: map_.entries[name].shape for name, map_ in self._maps.items()}

    def read(self, name: str, rows: slice = slice(None)) -> NDArray[np.float32]:
        """See ``Parameters``."""
        opened = self._maps[name]
        entry = opened.entries[name]
        stored = opened.bytes_of(name).view(_DTYPES[entry.dtype])
        chosen = stored.reshape(entry.shape)[rows]
        if entry.dtype == "BF16":
            return from_bfloat16(chosen)
        return chosen.astype(np.float32)

    def group_format(self, name: str) -> None:
        """Tell that there are none: see ``Parameters``."""
        del name

    def read_int4(self, name: str, rows: slice = slice(None)) -> FourBitGroups:
        """Never called: see ``group_format``."""
        raise AssertionError(f"{name} has no groups, nor {rows}")

    def read_int8(self, name: str, rows: slice = slice(None)) -> EightBitGroups:
        """Never called: see ``group_format``."""
        raise AssertionError(f"{name} has no groups, nor {rows}")
