"""What the machine's torch devices are good at, and how much memory they have free."""

import torch

from hybrid.backends.free_memory import free_host_memory_bytes


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
    """Memory that an allocation could take now: of the GPU, or of the host."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_host_memory_bytes()
