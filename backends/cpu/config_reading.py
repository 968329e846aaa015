"""A model's shape from its config.json, by transformers; or why the plan is not for it.

Needs transformers and torch: a part of building, not of starting from what was built.
"""

import logging
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from hybrid.scheduler.errors import CheckpointError, UnsupportedFeature

from .model_shape import MAX_COUNT, CpuModelShape, is_count

MODEL_TYPES: Final = {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
}
"""transformers' architectures that are Llama-shaped, and how their classes begin."""
_ROPE_TYPES: Final = ("default", "linear", "llama3", "yarn")
"""Those whose frequencies never change."""
_WINDOWED: Final = "sliding_attention"
_LAYER_TYPES: Final = ("full_attention", _WINDOWED)


def read_shape(directory: Path, *, ties_embeddings: bool | None) -> CpuModelShape:
    """Read config.json.

    Args:
        directory: that holds it.
        ties_embeddings: what the files say; ``None``: config.json decides.

    Raises:
        UnsupportedFeature: the plan has no op for what it asks; names it.
        CheckpointError: transformers refuses it.
    """
    config = _load(directory)
    kind = config.model_type
    _refuse("model_type", kind, MODEL_TYPES)
    _refuse("hidden_act", config.hidden_act, ("silu",))
    _refuse("rope_type", (config.rope_parameters or {}).get("rope_type"), _ROPE_TYPES)
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    frequencies, rope_scale = _rotary(config, head_dim)
    attention_bias = bool(getattr(config, "attention_bias", False))
    shape = CpuModelShape(
        architecture=f"{MODEL_TYPES[kind]}ForCausalLM",
        num_layers=config.num_hidden_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        max_model_len=config.max_position_embeddings,
        norm_epsilon=config.rms_norm_eps,
        attention_scale=head_dim**-0.5,
        rope_scale=rope_scale,
        inverse_frequencies=frequencies,
        windows=_windows(config),
        has_qkv_bias=attention_bias or kind == "qwen2",
        has_output_bias=attention_bias,
        has_mlp_bias=bool(getattr(config, "mlp_bias", False)),
        has_head_norms=kind == "qwen3",
        ties_embeddings=(
            bool(config.tie_word_embeddings)
            if ties_embeddings is None
            else ties_embeddings
        ),
    )
    _check_sizes(shape)
    return shape


def _load(directory: Path) -> Any:
    from transformers import AutoConfig  # noqa: PLC0415 - 0.5 s, only to build
    from transformers.utils import logging as hf_logging  # noqa: PLC0415

    verbosity = hf_logging.get_verbosity()
    hf_logging.set_verbosity(logging.ERROR)
    try:
        return AutoConfig.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers raises whatever broke
        raise CheckpointError(
            f"{directory}: config.json cannot be used: {type(error).__name__}: {error}"
        ) from error
    finally:
        hf_logging.set_verbosity(verbosity)


def _refuse(name: str, value: object, known: Collection[str]) -> None:
    if value not in known:
        raise UnsupportedFeature(
            f"{name} is {value!r}, the kernels run {', '.join(known)}"
        )


def _rotary(config: Any, head_dim: int) -> tuple[tuple[float, ...], float]:
    """Let transformers' own module compute frequencies and scale."""
    kind = config.model_type
    module = import_module(f"transformers.models.{kind}.modeling_{kind}")
    rotary = getattr(module, f"{MODEL_TYPES[kind]}RotaryEmbedding")(config)
    frequencies = tuple(rotary.inv_freq.float().tolist())
    if 2 * len(frequencies) != head_dim:
        raise UnsupportedFeature(
            f"{2 * len(frequencies)} of a head's {head_dim} dimensions are rotated, "
            "the kernels rotate all"
        )
    return frequencies, float(rotary.attention_scaling)


def _windows(config: Any) -> tuple[int | None, ...]:
    """Read each layer's window where its modelling code does."""
    layers: int = config.num_hidden_layers
    window: int | None = getattr(config, "sliding_window", None)
    if config.model_type == "llama":
        return (None,) * layers
    if config.model_type == "mistral":
        return (window,) * layers
    for kind in config.layer_types:
        _refuse("layer_types", kind, _LAYER_TYPES)
    return tuple(window if kind == _WINDOWED else None for kind in config.layer_types)


def _check_sizes(shape: CpuModelShape) -> None:
    """Refuse what no kernel was made for."""
    if shape.num_heads % shape.num_kv_heads:
        raise UnsupportedFeature(
            f"num_attention_heads is {shape.num_heads}, the kernels want a multiple of "
            f"num_key_value_heads, {shape.num_kv_heads}"
        )
    for name, value in (("sliding_window", w) for w in shape.windows if w is not None):
        if not is_count(value):
            raise UnsupportedFeature(f"{name} is {value}, must be 1 to {MAX_COUNT}")
