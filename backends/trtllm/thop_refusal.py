"""Why TensorRT-LLM's attention operator cannot serve a model on a machine."""

from importlib.util import find_spec
from typing import Final

from hybrid.bridge.trtllm_pools import MIN_BLOCK_SIZE

from .attention import AttentionNeeds
from .machine import Machine

BLACKWELL: Final = 10
"""Major compute capability of the data-centre GPUs with kernels of their own."""
BLACKWELL_HEAD_DIMS: Final = (64, 128, 256)


def thop_refusal(machine: Machine, needs: AttentionNeeds | None) -> str | None:
    """Answer all but whether the installed operator is one that we know.

    Args:
        machine: what there is.
        needs: of the model; ``None``: only the machine is asked about.

    Returns:
        The reason, or ``None``.
    """
    if find_spec("tensorrt_llm") is None:
        return "the package tensorrt_llm is not installed"
    device = machine.kernel_device
    if device not in machine.devices or machine.compute_capability is None:
        return f"its kernels need a {device} device, which is not to be had here"
    if needs is None:
        return None
    if needs.device != device:
        return f"its kernels run on {device}, the model is on {needs.device}"
    return _cache_refusal(needs) or _kernel_refusal(needs, machine.compute_capability)


def _cache_refusal(needs: AttentionNeeds) -> str | None:
    size = needs.block_size
    if size < MIN_BLOCK_SIZE or size & (size - 1):
        return f"block_size is {size}; it takes powers of two from {MIN_BLOCK_SIZE}"
    if needs.kv_dtype not in {needs.dtype, "float8_e4m3fn"}:
        return (
            f"kv_dtype is {needs.kv_dtype}; it is trusted with {needs.dtype} and "
            "float8_e4m3fn"
        )
    windows = [window for window in needs.windows if window is not None]
    if windows and min(windows) < needs.max_model_len:
        # It writes token t to the place t modulo the window, over blocks that other
        # requests may share.
        return (
            f"a sliding window of {min(windows)} tokens is shorter than "
            f"max_model_len={needs.max_model_len}; its cache would wrap around"
        )
    return None


def _kernel_refusal(needs: AttentionNeeds, capability: tuple[int, int]) -> str | None:
    if needs.dtype not in {"float16", "bfloat16", "float32"}:
        return f"dtype is {needs.dtype}; it takes float16, bfloat16 and float32"
    if needs.device == "cuda" and needs.dtype == "float32":
        # Source: TensorRT-LLM, gptAttentionCommon.cpp, "Fall back to unfused MHA
        # because of unsupported data type".
        return (
            "dtype is float32, for which it has no fused kernels, and those that it "
            "falls back to ignore what is cached; it takes float16 and bfloat16"
        )
    if capability[0] == BLACKWELL and needs.head_dim not in BLACKWELL_HEAD_DIMS:
        # Not an error that could be caught: the kernels' choice ends the process.
        return (
            f"head_dim is {needs.head_dim}; on compute capability {BLACKWELL}.x it "
            f"takes {', '.join(map(str, BLACKWELL_HEAD_DIMS))}"
        )
    return None
