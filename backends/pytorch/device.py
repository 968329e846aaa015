"""What the machine's torch devices are good at, and how much memory they have free."""

from pathlib import Path

import psutil
import torch

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
CGROUP_USE = Path("/sys/fs/cgroup/memory.current")


def available_devices() -> tuple[str, ...]:
    """Usable devices, the fastest first."""
    return ("cuda", "cpu") if torch.cuda.is_available() else ("cpu",)


def fast_dtypes(device: str) -> tuple[str, ...]:
    """Dtypes that a device multiplies natively, the preferred first."""
    if device != "cpu":
        return ("bfloat16", "float16", "float32")
    capability = torch.cpu.get_capabilities()
    if capability.get("avx512_bf16") or capability.get("amx_bf16"):
        return ("bfloat16", "float32")
    return ("float32",)


def free_memory_bytes(device: torch.device) -> int:
    """Memory that an allocation could take now: of the GPU, or machine and cgroup."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = int(psutil.virtual_memory().available)
    if CGROUP_LIMIT.is_file() and CGROUP_USE.is_file():
        limit = CGROUP_LIMIT.read_text("ascii").strip()
        if limit.isdecimal():
            free = min(free, max(0, int(limit) - int(CGROUP_USE.read_text("ascii"))))
    return free
