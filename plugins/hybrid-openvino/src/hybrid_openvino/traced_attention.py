"""Attention as it is traced: transformers' registry, an explicit cache, torch's SDPA.

A model loaded with ``ATTENTION_NAME`` hands each layer's query, key and value to
``traced_attention``, which joins them with the layer's past and lets the trace see what
OpenVINO's paged-attention transformation looks for: a cache input, a concatenation, a
scaled dot product.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import torch
from transformers import AttentionInterface

from hybrid.api import UnsupportedFeature

ATTENTION_NAME: Final = "hybrid_openvino_traced"
TRACE_KEYWORD: Final = "hybrid_trace"
_REFUSED: Final = {
    "softcap": "soft-capped attention",
    "s_aux": "attention sinks",
    "position_bias": "a position bias",
    "head_mask": "a head mask",
}
"""What OpenVINO's paged attention on CPUs, or this trace, would drop in silence."""


@dataclass(slots=True)
class TracedCache:
    """The cache of one traced forward pass, and what was seen of each layer."""

    past: list[tuple[torch.Tensor, torch.Tensor]]
    """K and V of each layer: ``[batch, kv_heads, past tokens, head_dim]``."""
    attention_mask: torch.Tensor
    """int64 ``[batch, past and new tokens]``: 1 where there is a token."""
    present: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """By layer, past and new K and V joined."""
    windows: dict[int, int] = field(default_factory=dict)
    """By layer, its sliding window in tokens; 0: it sees everything before it."""

    def visible(self, num_new: int, window: int) -> torch.Tensor:
        """Which key each new token sees: bool ``[batch, 1, num_new, total]``."""
        total = self.attention_mask.shape[1]
        columns = torch.arange(total)[None, :]
        rows = (torch.arange(num_new) + (total - num_new))[:, None]
        visible = columns <= rows
        if window:
            visible = visible & (columns > rows - window)
        return visible[None, None] & self.attention_mask[:, None, None, :].bool()


def register_attention() -> None:
    """Make ``ATTENTION_NAME`` known to transformers; again is harmless."""
    AttentionInterface.register(ATTENTION_NAME, traced_attention)


def traced_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **keywords: Any,
) -> tuple[torch.Tensor, None]:
    """Attend over past and new tokens of a layer.

    Args:
        module: the layer's attention module; its ``layer_idx`` says which layer.
        query: ``[batch, heads, new tokens, head_dim]``.
        key: ``[batch, kv_heads, new tokens, head_dim]``, rotated already.
        value: as ``key``.
        attention_mask: must be absent.
        **keywords: the model's (scaling, sliding_window) and our cache.

    Returns:
        ``[batch, new tokens, heads, head_dim]``.

    Raises:
        UnsupportedFeature: the layer asks for what paged attention would drop.
    """
    _refuse_unknown(module, attention_mask, keywords)
    cache: TracedCache = keywords[TRACE_KEYWORD]
    layer = _layer_index(module)
    past_key, past_value = cache.past[layer]
    keys = torch.cat([past_key, key], dim=2)
    values = torch.cat([past_value, value], dim=2)
    window = int(keywords.get("sliding_window") or 0)
    cache.present[layer] = (keys, values)
    cache.windows[layer] = window
    num_groups = query.shape[1] // key.shape[1]
    output = torch.nn.functional.scaled_dot_product_attention(
        query,
        _repeat_heads(keys, num_groups),
        _repeat_heads(values, num_groups),
        attn_mask=cache.visible(query.shape[2], window),
        scale=keywords.get("scaling"),
    )
    return output.transpose(1, 2).contiguous(), None


def _repeat_heads(states: torch.Tensor, num_groups: int) -> torch.Tensor:
    """Give every query head its key head: ``[batch, heads, tokens, head_dim]``."""
    if num_groups == 1:
        return states
    batch, heads, tokens, head_dim = states.shape
    spread = states[:, :, None].expand(batch, heads, num_groups, tokens, head_dim)
    return spread.reshape(batch, heads * num_groups, tokens, head_dim)


def _refuse_unknown(
    module: torch.nn.Module, mask: torch.Tensor | None, keywords: dict[str, Any]
) -> None:
    name = type(module).__name__
    if TRACE_KEYWORD not in keywords:
        raise UnsupportedFeature(
            f"executor openvino: {name} does not pass its keywords on to attention"
        )
    if mask is not None:
        raise UnsupportedFeature(f"executor openvino: {name} brings a mask of its own")
    if getattr(module, "is_causal", True) is False:
        raise UnsupportedFeature(f"executor openvino: {name} is not causal")
    for keyword, meaning in _REFUSED.items():
        if keywords.get(keyword) is not None:
            raise UnsupportedFeature(f"executor openvino: {name} uses {meaning}")
    config = getattr(module, "config", None)
    layer_types = getattr(config, "layer_types", None) or []
    layer = _layer_index(module)
    is_windowed = layer < len(layer_types) and layer_types[layer] == "sliding_attention"
    if is_windowed and keywords.get("sliding_window") is None:
        raise UnsupportedFeature(
            f"executor openvino: {name} has a sliding window that it gives by mask only"
        )


def _layer_index(module: torch.nn.Module) -> int:
    layer: Any = module.layer_idx
    return int(layer)
