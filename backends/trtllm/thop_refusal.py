"""Why TensorRT-LLM's attention operator cannot serve a model on a machine.

Where it has no fused kernel for a context it falls back in silence to one that ignores
what is cached, and answers wrongly. So a size is taken only if upstream builds a kernel
for it.

Source: TensorRT-LLM 1.3 pre-releases, ``cpp/kernels/fmha_v2/setup.py`` (head sizes of
the context kernels over a paged cache), ``common/attentionOp.cpp`` (what else falls
back).
"""

from importlib.util import find_spec
from typing import Final

from hybrid.bridge.trtllm_pools import INT31, MIN_BLOCK_SIZE

from .attention import AttentionNeeds
from .machine import Machine
from .scaled_kv_pool import FP8

DTYPES: Final = ("float16", "bfloat16")
FP8_CAPABILITY: Final = (8, 9)
HEAD_DIMS: Final = (32, 48, 64, 80, 96, 104, 128, 160, 192, 256)
BLACKWELL_HEAD_DIMS: Final = {(10, 0): (64, 128, 256), (10, 3): (128, 256)}
"""By compute capability; these GPUs have kernels of their own, and the choice among
them ends the process where there is none."""


def thop_refusal(machine: Machine, needs: AttentionNeeds | None) -> str | None:
    """Answer all but whether the installed operator is one that we know.

    Args:
        machine: what there is.
        needs: of the model; ``None``: only the machine is asked about.

    Returns:
        The reason, or ``None``.
    """
    device, capability = machine.kernel_device, machine.compute_capability
    if device not in machine.devices or capability is None:
        return f"its kernels need a {device} device, which is not to be had here"
    if find_spec("tensorrt_llm") is None:
        return "the package tensorrt_llm is not installed"
    if needs is None:
        return None
    if needs.device != device:
        return f"its kernels run on {device}, the model is on {needs.device}"
    reason = _cache_refusal(needs)
    if reason is None and device == "cuda":
        reason = _kernel_refusal(needs, capability)
    return reason


def _cache_refusal(needs: AttentionNeeds) -> str | None:
    """What any kernel would misread."""
    size = needs.block_size
    if size < MIN_BLOCK_SIZE or size & (size - 1):
        return f"block_size is {size}; it takes powers of two from {MIN_BLOCK_SIZE}"
    if needs.kv_dtype not in {needs.dtype, FP8}:
        return f"kv_dtype is {needs.kv_dtype}; it takes {needs.dtype} and {FP8}"
    most = needs.max_num_seqs * needs.max_model_len
    if most > INT31:
        return (
            f"max_num_seqs={needs.max_num_seqs} sequences of max_model_len="
            f"{needs.max_model_len} are {most:,} tokens; it counts up to {INT31:,}"
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
    """What no kernel is built for."""
    if needs.dtype not in DTYPES:
        return f"dtype is {needs.dtype}; its fused kernels take {' and '.join(DTYPES)}"
    here = "{}.{}".format(*capability)
    if needs.kv_dtype == FP8 and capability < FP8_CAPABILITY:
        return (
            f"kv_dtype is {FP8}, which needs compute capability "
            f"{'.'.join(map(str, FP8_CAPABILITY))}; this GPU has {here}"
        )
    head_dims = BLACKWELL_HEAD_DIMS.get(capability, HEAD_DIMS)
    if needs.head_dim not in head_dims:
        return (
            f"head_dim is {needs.head_dim}; on compute capability {here} it takes "
            f"{', '.join(map(str, head_dims))}"
        )
    return None
