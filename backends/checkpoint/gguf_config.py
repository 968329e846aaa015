"""From a GGUF's metadata to the config.json that transformers reads.

Every key that changes what the model computes is honoured or refused by name; keys that
nobody here knows are logged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from hybrid.scheduler.errors import CheckpointError

from .gguf_header import GGUFHeader
from .gguf_rope import NEUTRAL_SCALING, rope_parameters

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Architecture:
    """What differs between the architectures that we convert."""

    model_type: str
    class_name: str
    permutes_rotary_rows: bool
    """llama.cpp stores q and k with the rows of each head interleaved."""
    default_bias: bool | None
    """Whether q, k and v have biases; ``None``: the tensors say."""
    has_head_norms: bool = False
    """Normalises q and k of each head."""


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "llama": Architecture("llama", "LlamaForCausalLM", True, None),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", False, True),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", False, None, True),
}
"""By ``general.architecture``. Mistral's files call themselves ``llama``."""

_REQUIRED: Final = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
}
_HONOURED: Final = frozenset(
    {
        *_REQUIRED.values(),
        "attention.head_count_kv",
        "attention.layer_norm_rms_epsilon",
        "attention.key_length",
        "attention.value_length",
        "attention.sliding_window",
        "expert_count",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
        *(f"rope.scaling.{name}" for name in NEUTRAL_SCALING),
        "rope.scale_linear",
        "vocab_size",
    }
)


def find_architecture(header: GGUFHeader) -> Architecture:
    """Find how to convert this file's architecture.

    Raises:
        CheckpointError: it is not supported; names those that are.
    """
    name = header.text("general.architecture")
    if name is None or name not in ARCHITECTURES:
        raise CheckpointError(
            f"{header.path}: GGUF architecture {name!r} is not supported; supported: "
            f"{', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]


def gguf_config(header: GGUFHeader, dtype: str) -> dict[str, object]:
    """Build the config.json of the model, its weights stored as ``dtype``.

    Raises:
        CheckpointError: a key is missing, contradicts another, or asks for what is not
            supported.
    """
    architecture = find_architecture(header)
    prefix = header.text("general.architecture")
    config: dict[str, object] = {
        ours: _positive(header, f"{prefix}.{theirs}")
        for ours, theirs in _REQUIRED.items()
    }
    _refuse_unsupported(header, prefix)
    heads = _positive(header, f"{prefix}.attention.head_count")
    hidden_size = _positive(header, f"{prefix}.embedding_length")
    head_dim = _head_dim(header, prefix, hidden_size // heads)
    return config | {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "dtype": dtype,
        "num_key_value_heads": _num_kv_heads(header, prefix, heads),
        "head_dim": head_dim,
        "rms_norm_eps": _epsilon(header, prefix),
        "rope_parameters": rope_parameters(header, head_dim),
        "vocab_size": _vocab_size(header),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "hidden_act": "silu",
        **_biases(header, architecture),
    }


def _num_kv_heads(header: GGUFHeader, prefix: str | None, num_heads: int) -> int:
    num_kv_heads = header.integer(f"{prefix}.attention.head_count_kv") or num_heads
    if num_heads % num_kv_heads:
        raise CheckpointError(
            f"{header.path}: {num_heads} attention heads are no multiple of "
            f"{num_kv_heads} key and value heads"
        )
    return num_kv_heads


def _epsilon(header: GGUFHeader, prefix: str | None) -> float:
    key = f"{prefix}.attention.layer_norm_rms_epsilon"
    epsilon = header.number(key)
    if epsilon is None:
        raise CheckpointError(f"{header.path}: {key} is missing")
    # float32 in the file; seven digits give back what was meant (1e-05).
    return float(f"{epsilon:.7g}")


def _positive(header: GGUFHeader, key: str) -> int:
    value = header.metadata.get(key)
    if not isinstance(value, int) or value < 1:
        raise CheckpointError(
            f"{header.path}: {key} must be one positive integer, is {value!r:.80}"
        )
    return value


def _head_dim(header: GGUFHeader, prefix: str | None, default: int) -> int:
    key = header.integer(f"{prefix}.attention.key_length")
    rotary = header.integer(f"{prefix}.rope.dimension_count")
    head_dim = key or rotary or default
    for name, other in (
        ("attention.value_length", header.integer(f"{prefix}.attention.value_length")),
        ("rope.dimension_count", rotary),
    ):
        if other is not None and other != head_dim:
            raise CheckpointError(
                f"{header.path}: {prefix}.{name} is {other} while a head has "
                f"{head_dim}; only equal sizes are supported"
            )
    return head_dim


def _vocab_size(header: GGUFHeader) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{header.path}: tensor token_embd.weight is missing")
    return embedding.shape[0]


def _biases(header: GGUFHeader, architecture: Architecture) -> dict[str, bool]:
    if architecture.default_bias is not None:
        return {}
    biases = {"attention_bias": "blk.0.attn_q.bias" in header.tensors}
    if architecture.model_type == "llama":
        biases["mlp_bias"] = "blk.0.ffn_gate.bias" in header.tensors
    return biases


def _refuse_unsupported(header: GGUFHeader, prefix: str | None) -> None:
    layers = _positive(header, f"{prefix}.block_count")
    if layers > len(header.tensors):  # also bounds what is built per layer
        raise CheckpointError(
            f"{header.path}: {prefix}.block_count is {layers}, the file has "
            f"{len(header.tensors)} tensors in all"
        )
    if experts := header.integer(f"{prefix}.expert_count"):
        raise CheckpointError(
            f"{header.path}: {prefix}.expert_count is {experts}; mixtures of experts "
            "are not supported from GGUF"
        )
    window = header.integer(f"{prefix}.attention.sliding_window")
    context = header.integer(f"{prefix}.context_length")
    if window and context and window < context:
        raise CheckpointError(
            f"{header.path}: {prefix}.attention.sliding_window is {window}, below the "
            f"context of {context}; sliding windows are not supported from GGUF"
        )
    unknown = sorted(
        key
        for key in header.metadata
        if key.startswith(f"{prefix}.")
        and key.removeprefix(f"{prefix}.") not in _HONOURED
    )
    if unknown:
        log.warning("gguf.metadata_ignored", path=str(header.path), keys=tuple(unknown))
