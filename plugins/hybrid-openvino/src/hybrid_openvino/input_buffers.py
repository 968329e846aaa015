"""The step's arrays where OpenVINO reads them: buffers that outlive the step.

From one decode step to the next only values change, not lengths. OpenVINO keeps the
tensors that it was given, so then nothing has to be made or set, only written.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

SetTensor = Callable[[str, ov.Tensor], None]


class InputBuffers:
    """One growing buffer an input; a tensor over it is set when its length changes."""

    def __init__(self, set_tensor: SetTensor) -> None:
        self._set_tensor = set_tensor
        self._buffers: dict[str, NDArray[Any]] = {}
        self._views: dict[str, NDArray[Any]] = {}
        """What the model was last given, by input: a part of its buffer."""

    def write(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Put the arrays, scalars or of one dimension, where the model reads them."""
        for name, array in arrays.items():
            view = self._views.get(name)
            if view is None or view.shape != array.shape:
                view = self._resize(name, array)
            view[...] = array

    def _resize(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < array.size:
            # Twice as long: a growing batch must not allocate in every step.
            buffer = np.empty(max(2 * array.size, 16), dtype=array.dtype)
            self._buffers[name] = buffer
        view = buffer[: array.size].reshape(array.shape)
        self._views[name] = view
        self._set_tensor(name, ov.Tensor(view, shared_memory=True))
        return view
