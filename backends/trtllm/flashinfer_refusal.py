"""Why FlashInfer's TensorRT-LLM kernels cannot serve a model on a machine.

Source: FlashInfer 0.7.4: ``flashinfer/jit/xqa.py`` (block sizes, head sizes),
``flashinfer/jit/attention/fmha_v2/fmha_library.py`` (prefill on SM90 and SM12x);
TensorRT-LLM, ``fmha/flashinfer_trtllm_gen.py`` (SM100 and SM103).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from hybrid.bridge.flashinfer_tables import BLOCK_SIZES
from hybrid.scheduler.errors import UnsupportedFeature

from .attention import AttentionNeeds
from .machine import Machine
from .optional_library import import_library

DTYPES: Final = ("bfloat16", "float16")
MAX_GROUP: Final = 32
"""Most query heads of one KV head."""


@dataclass(frozen=True, slots=True)
class KernelSet:
    """What one generation of GPUs has kernels for, decode and prefill together."""

    prefill: str
    """The function of ``flashinfer.prefill``."""
    since: str
    """The release that brought it."""
    block_sizes: tuple[int, ...]
    head_dims: tuple[int, ...]
    has_fp8: bool


DECODE: Final = "trtllm_batch_decode_with_kv_cache"
"""The function of ``flashinfer.decode``, the same for all."""
FMHA_V2: Final = "trtllm_fmha_v2_prefill"
KERNEL_SETS: Final[Mapping[tuple[int, int], KernelSet]] = {
    (9, 0): KernelSet(
        FMHA_V2, "0.6.7", BLOCK_SIZES, (32, 48, 64, 80, 96, 128, 160, 192, 256), True
    ),
    **dict.fromkeys(
        ((10, 0), (10, 3)),
        KernelSet(
            "trtllm_batch_context_with_kv_cache",
            "0.2.9",
            BLOCK_SIZES[:3],
            (64, 128, 256),
            True,
        ),
    ),
    **dict.fromkeys(
        ((12, 0), (12, 1)),
        KernelSet(FMHA_V2, "0.6.7", BLOCK_SIZES, (64, 128, 256), False),
    ),
}
"""By compute capability."""


def flashinfer_refusal(machine: Machine, needs: AttentionNeeds | None) -> str | None:
    """Ask the machine, the model's sizes, and the package last: its import is slow.

    Args:
        machine: what there is.
        needs: of the model; ``None``: only the machine is asked about.

    Returns:
        The reason, or ``None``.
    """
    reason = _machine_refusal(machine)
    if reason is not None:
        return reason
    kernels = KERNEL_SETS[machine.compute_capability or (0, 0)]
    if needs is not None:
        if needs.device != machine.kernel_device:
            return (
                f"its kernels run on {machine.kernel_device}, the model is on "
                f"{needs.device}"
            )
        reason = _sizes_refusal(needs, kernels) or _dtype_refusal(needs, kernels)
    return reason or _package_refusal(kernels)


def _machine_refusal(machine: Machine) -> str | None:
    device, capability = machine.kernel_device, machine.compute_capability
    if device not in machine.devices or capability is None:
        return f"its kernels need a {device} device, which is not to be had here"
    if capability not in KERNEL_SETS:
        known = ", ".join(f"SM{major}{minor}" for major, minor in KERNEL_SETS)
        major, minor = capability
        return f"its kernels are for {known}; this GPU is SM{major}{minor}"
    if find_spec("flashinfer") is None:
        return "FlashInfer is not installed (pip install flashinfer-python)"
    if device == "cuda" and find_spec("triton") is None:
        return "Triton is not installed, by which the new K and V are written"
    return None


def _sizes_refusal(needs: AttentionNeeds, kernels: KernelSet) -> str | None:
    for name, value, known in (
        ("block_size", needs.block_size, kernels.block_sizes),
        ("head_dim", needs.head_dim, kernels.head_dims),
    ):
        if value not in known:
            return f"{name} is {value}; on this GPU it takes {_listed(known)}"
    group = needs.num_heads // needs.num_kv_heads
    if group > MAX_GROUP:
        return f"{group} query heads share a KV head; it takes at most {MAX_GROUP}"
    return None


def _dtype_refusal(needs: AttentionNeeds, kernels: KernelSet) -> str | None:
    if needs.dtype not in DTYPES:
        return f"dtype is {needs.dtype}; it takes {_listed(DTYPES)}"
    if needs.kv_dtype == needs.dtype:
        return None
    if needs.kv_dtype != "float8_e4m3fn":
        return f"kv_dtype is {needs.kv_dtype}; it takes {needs.dtype}, float8_e4m3fn"
    if not kernels.has_fp8:
        return "kv_dtype is float8_e4m3fn, for which this GPU has no prefill kernel"
    return None


def _package_refusal(kernels: KernelSet) -> str | None:
    functions = {
        "flashinfer.decode": DECODE,
        "flashinfer.prefill": kernels.prefill,
    }
    for module, function in functions.items():
        try:
            found = import_library(module)
        except UnsupportedFeature as error:
            return str(error)
        if not hasattr(found, function):
            version = getattr(import_library("flashinfer"), "__version__", "unknown")
            return (
                f"FlashInfer {version} has no {function}; it takes "
                f"{kernels.since} or newer"
            )
    return None


def _listed(values: tuple[object, ...]) -> str:
    return ", ".join(map(str, values))
