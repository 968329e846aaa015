"""Host arrays that a GPU can copy from while the host goes on."""

import numpy as np
import torch
from numpy.typing import NDArray

from hybrid.bridge.trtllm_offsets import HostAllocator, zeros_on_host


def host_allocator(device: torch.device) -> HostAllocator:
    """Choose where tables lie that ``device`` will copy: pinned if it is a GPU."""
    return _pinned_zeros if device.type == "cuda" else zeros_on_host


def _pinned_zeros(shape: tuple[int, ...]) -> NDArray[np.int32]:
    array: NDArray[np.int32] = torch.zeros(
        shape, dtype=torch.int32, pin_memory=True
    ).numpy()
    return array
