"""A safetensors file mapped into memory: arrays without a copy, and without torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .safetensors_index import TensorEntry, read_safetensors_header


class SafetensorsMap:
    """The tensors of one file as read-only bytes.

    Raises:
        CheckpointError: the file is missing, truncated or none of safetensors.
    """

    def __init__(self, file: Path) -> None:
        self.entries: Final[Mapping[str, TensorEntry]] = {
            entry.name: entry for entry in read_safetensors_header(file)
        }
        self._bytes: Final = np.asarray(np.memmap(file, np.uint8, "r"))

    def bytes_of(self, name: str) -> NDArray[np.uint8]:
        """Give the bytes of a tensor: a flat view of the file.

        Raises:
            KeyError: the file has none of that name.
        """
        entry = self.entries[name]
        return self._bytes[entry.start_bytes : entry.start_bytes + entry.num_bytes]
