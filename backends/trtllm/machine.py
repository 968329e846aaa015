"""What the probes may know of the machine: asked once, handed to all of them."""

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
    """(major, minor) of the current GPU, e.g. (9, 0) for Hopper; ``None``: no GPU."""
    kernel_device: str = "cuda"
    """Where compiled kernels run and keep their tensors."""

    @classmethod
    def detect(cls) -> "Machine":
        """Ask torch."""
        if not torch.cuda.is_available():
            return cls(("cpu",), None)
        return cls(("cuda", "cpu"), torch.cuda.get_device_capability())
