"""A GGUF's rotary position settings, as transformers' ``rope_parameters``."""

from typing import Final

import gguf
import numpy as np
import numpy.typing as npt

from hybrid.scheduler.errors import CheckpointError

from .gguf_header import GGUFHeader

ROPE_FACTORS: Final = "rope_freqs.weight"
"""The tensor with one divisor for each rotary frequency, where a model has them."""
_DEFAULT_BASE: Final = 10000.0
NEUTRAL_SCALING: Final = {
    "attn_factor": 1.0,
    "yarn_attn_factor": 1.0,
    "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0,
    "yarn_ext_factor": 1.0,
    "yarn_log_multiplier": 0.0,
}
"""What each means where it is absent, so that it changes nothing when it is present.
Source: llama.cpp, ``llama_hparams`` and the constructor of ``llama_context``."""
# Llama 3's settings; files carry only the factors that llama.cpp computed from them.
_LOW_FREQ_FACTOR: Final = 1.0
_HIGH_FREQ_FACTOR: Final = 4.0
_ORIGINAL_CONTEXT: Final = 8192


def rope_parameters(header: GGUFHeader, head_dim: int) -> dict[str, object]:
    """Build ``rope_parameters`` from metadata and the factors' tensor.

    Raises:
        CheckpointError: a scaling that is not supported; names it.
    """
    prefix = header.text("general.architecture")
    _refuse_unsupported(header, f"{prefix}.rope.scaling")
    base = header.number(f"{prefix}.rope.freq_base") or _DEFAULT_BASE
    kind = header.text(f"{prefix}.rope.scaling.type") or "none"
    factor = header.number(f"{prefix}.rope.scaling.factor") or header.number(
        f"{prefix}.rope.scale_linear"
    )
    original = header.integer(f"{prefix}.rope.scaling.original_context_length")
    parameters: dict[str, object] = {"rope_type": "default", "rope_theta": base}
    if ROPE_FACTORS in header.tensors:
        if kind not in {"none", "llama3"}:
            raise CheckpointError(
                f"{header.path}: {ROPE_FACTORS} beside rope scaling {kind!r} is not "
                "supported"
            )
        factors = _read_factors(header, head_dim)
        return parameters | _llama3(header, factors, base, original)
    if kind == "none" and (factor is None or factor == 1.0):
        return parameters
    if factor is None:
        raise CheckpointError(f"{header.path}: {prefix}.rope.scaling.factor is missing")
    if kind in {"linear", "none"}:  # files from before the type was written
        return parameters | {"rope_type": "linear", "factor": factor}
    if kind == "yarn" and original is not None:
        return parameters | {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
        }
    raise CheckpointError(
        f"{header.path}: {prefix}.rope.scaling.type is {kind!r}; supported: none, "
        "linear, yarn (with rope.scaling.original_context_length), Llama 3's factors"
    )


def _refuse_unsupported(header: GGUFHeader, prefix: str) -> None:
    """Refuse what scales attention, or bends the YaRN ramp, in another way."""
    for name, neutral in NEUTRAL_SCALING.items():
        value = header.number(f"{prefix}.{name}")
        if value is not None and value != neutral:
            raise CheckpointError(
                f"{header.path}: {prefix}.{name} is {value:g}; only {neutral:g} is "
                "supported"
            )


def _read_factors(header: GGUFHeader, head_dim: int) -> npt.NDArray[np.float32]:
    tensor = header.tensors[ROPE_FACTORS]
    expected = (head_dim // 2,)
    if tensor.shape != expected or tensor.type != gguf.GGMLQuantizationType.F32:
        raise CheckpointError(
            f"{header.path}: {ROPE_FACTORS} must be F32 of shape {expected}, is "
            f"{tensor.type.name} of shape {tensor.shape}"
        )
    return np.fromfile(header.path, "<f4", head_dim // 2, offset=tensor.offset_bytes)


def _llama3(
    header: GGUFHeader,
    factors: npt.NDArray[np.float32],
    base: float,
    original: int | None,
) -> dict[str, object]:
    """Find the settings that give these factors; refuse where none do."""
    factor = float(f"{float(factors.max()):.6g}")
    if np.all(factors == 1.0):
        return {}
    settings: dict[str, object] = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LOW_FREQ_FACTOR,
        "high_freq_factor": _HIGH_FREQ_FACTOR,
    }
    for context in dict.fromkeys((original or _ORIGINAL_CONTEXT, _ORIGINAL_CONTEXT)):
        expected = llama3_factors(2 * len(factors), base, factor, context)
        if np.allclose(factors, expected, rtol=1e-4):
            return settings | {"original_max_position_embeddings": context}
    raise CheckpointError(
        f"{header.path}: the factors in {ROPE_FACTORS} are not Llama 3's "
        f"(low_freq_factor {_LOW_FREQ_FACTOR:g}, high_freq_factor "
        f"{_HIGH_FREQ_FACTOR:g}, original context {original or _ORIGINAL_CONTEXT}); "
        "others are not supported"
    )


def llama3_factors(
    head_dim: int, base: float, factor: float, original_context: int
) -> npt.NDArray[np.float64]:
    """What each rotary frequency is divided by: float64 ``[head_dim / 2]``.

    Source: llama.cpp ``convert_hf_to_gguf.py``, ``generate_extra_tensors``.
    """
    frequencies = 1.0 / base ** (np.arange(0, head_dim, 2) / head_dim)
    turns = original_context * frequencies / (2 * np.pi)
    smooth = (turns - _LOW_FREQ_FACTOR) / (_HIGH_FREQ_FACTOR - _LOW_FREQ_FACTOR)
    return 1.0 / ((1.0 - (clipped := np.clip(smooth, 0, 1))) / factor + clipped)
