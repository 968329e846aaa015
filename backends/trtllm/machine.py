"""What the probes may know of the machine: asked once, handed to all of them."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices and the GPU's generation.

    Made by ``detect``; a test makes its own, to show what another machine would get.
    """

    devices: tuple[str, ...]
    """Usable ones, the fastest first."""
    compute_capability: tuple[int, int] | None
    """(major, minor) of the GPU, e.g. (9, 0) for Hopper; ``None``: no GPU."""
    kernel_device: str = "cuda"
    """Where compiled kernels run and keep their tensors."""
    gpu_index: int | None = None
    """Which GPU was asked about; ``None``: the current one of whoever asks."""

    @classmethod
    def detect(cls) -> "Machine":
        """Ask torch about the GPU that is current now."""
        if not torch.cuda.is_available():
            return cls(("cpu",), None)
        index = torch.cuda.current_device()
        capability = torch.cuda.get_device_capability(index)
        return cls(("cuda", "cpu"), capability, gpu_index=index)

    def using(self, device: str) -> AbstractContextManager[object]:
        """Make ``cuda`` mean this machine's GPU, whatever thread calls.

        Which one is current is a matter of the thread, and streams, events and
        libraries go by it.

        Args:
            device: ``cuda`` or ``cpu``, which needs nothing.
        """
        return torch.cuda.device(self.gpu_index) if device == "cuda" else nullcontext()
