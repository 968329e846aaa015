"""What ``executor="auto"`` stands for on this machine, found out without torch."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

DEVICE_NODES: Final = tuple(
    Path("/dev", name) for name in ("nvidiactl", "dxg", "nvmap", "kfd")
)
"""What drivers of devices put up that torch calls CUDA: NVIDIA's on Linux, within
Windows and on Tegra, and AMD's."""


def default_executor(
    device_nodes: Sequence[Path] = DEVICE_NODES,
    finds_cuda: Callable[[], bool] | None = None,
) -> str:
    """Name the executor: ``torch`` where it finds a CUDA device, else ``cpu``.

    Args:
        device_nodes: where none of these exists there is no device, and nobody is
            asked: torch takes seconds to import.
        finds_cuda: who is asked; ``None``: torch.
    """
    if not any(node.exists() for node in device_nodes):
        return "cpu"
    return "torch" if (finds_cuda or _torch_finds_cuda)() else "cpu"


def _torch_finds_cuda() -> bool:
    try:
        import torch  # noqa: PLC0415 - see default_executor
    except ImportError:
        return False
    return torch.cuda.is_available()
