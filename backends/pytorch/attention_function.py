"""Hooks paged attention into transformers' modelling code, by its own registry.

A model loaded with ``attn_implementation=ATTENTION_NAME`` calls ``paged_attention``
in every layer, with the keywords that its forward was given; ours carries the step.
transformers makes no mask for an attention that has none registered.
Source: transformers 5.24, ``masking_utils._preprocess_mask_arguments`` and
``modeling_utils.AttentionInterface``.
"""

from typing import Any, Final

import torch
from transformers import AttentionInterface

from hybrid.scheduler.errors import UnsupportedFeature

from .paged_attention import AttentionOptions, attend_contexts, attend_generations
from .step_attention import StepAttention

ATTENTION_NAME: Final = "hybrid_paged"
STEP_KEYWORD: Final = "hybrid_step"


def register_attention() -> None:
    """Make ``ATTENTION_NAME`` known to transformers; again is harmless."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **keywords: Any,
) -> tuple[torch.Tensor, None]:
    """Write the step's K and V into the pool and attend over the block tables.

    Args:
        module: the layer's attention module; its ``layer_idx`` says which layer.
        query: ``[1, num_heads, N, head_dim]``, the packed tokens.
        key: ``[1, num_kv_heads, N, head_dim]``, rotated already.
        value: as ``key``.
        attention_mask: must be absent: visibility follows from the block tables.
        **keywords: the model's (scaling, sliding_window, softcap) and our step.

    Returns:
        ``[1, N, num_heads, head_dim]``, and no weights.

    Raises:
        UnsupportedFeature: the model asks for something that paging cannot give.
    """
    _refuse_unknown(module, attention_mask, keywords)
    step: StepAttention = keywords[STEP_KEYWORD]
    layer = _layer_index(module)
    scale = keywords.get("scaling")
    options = AttentionOptions(
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        window=keywords.get("sliding_window"),
        softcap=keywords.get("softcap"),
    )
    step.layers_seen.append(layer)
    qkv = (query[0], key[0], value[0])
    step.pool.write(layer, step.places, qkv[1], qkv[2])
    parts = [
        part.transpose(0, 1) for part in attend_contexts(step, layer, qkv, options)
    ]
    num_context_tokens = step.batch.num_context_tokens
    if num_context_tokens < query.shape[2]:
        generations = query[0, :, num_context_tokens:]
        parts.append(attend_generations(step, layer, generations, options))
    output = parts[0] if len(parts) == 1 else torch.cat(parts)
    return output[None], None


def _refuse_unknown(
    module: torch.nn.Module, mask: torch.Tensor | None, keywords: dict[str, Any]
) -> None:
    """Refuse what would be dropped in silence."""
    name = type(module).__name__
    if STEP_KEYWORD not in keywords:
        raise UnsupportedFeature(
            f"executor torch: {name} does not pass its keywords on to attention"
        )
    if mask is not None:
        raise UnsupportedFeature(f"executor torch: {name} brings a mask of its own")
    if getattr(module, "is_causal", True) is False:
        raise UnsupportedFeature(f"executor torch: {name} is not causal")
    for keyword, meaning in (
        ("s_aux", "attention sinks"),
        ("position_bias", "a position bias"),
        ("head_mask", "a head mask"),
    ):
        if keywords.get(keyword) is not None:
            raise UnsupportedFeature(f"executor torch: {name} uses {meaning}")
    if _needs_window(module) and keywords.get("sliding_window") is None:
        raise UnsupportedFeature(
            f"executor torch: {name} has a sliding window that it gives by mask only"
        )


def _needs_window(module: torch.nn.Module) -> bool:
    """Whether the configuration says that this layer sees a window."""
    config = getattr(module, "config", None)
    layer_types: list[str] = getattr(config, "layer_types", None) or []
    layer = _layer_index(module)
    return layer < len(layer_types) and layer_types[layer] == "sliding_attention"


def _layer_index(module: torch.nn.Module) -> int:
    layer: Any = module.layer_idx
    return int(layer)
