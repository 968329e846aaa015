"""Attention over a paged KV pool in plain torch: one path for chunks, one for decode.

Pure functions over tensors; knows no model. Decode never assembles a context: it walks
(sequence, block) pairs in tiles of bounded size and merges them with the online softmax
(Milakov and Gimelshein, 2018), each sequence costing just the blocks it has.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

from .step_attention import ContextSpan, DecodeTile, StepAttention

MAX_QUERY_TILE: Final = 512
"""Queries of one chunk that attend at once when a mask is needed: bounds the mask."""


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """What a model may ask of its attention."""

    scale: float
    window: int | None = None
    """Tokens that a query sees, itself included; ``None``: all before it."""
    softcap: float | None = None
    """Scores become ``softcap * tanh(score / softcap)``; ``None``: as they are."""


def attend_contexts(
    step: StepAttention,
    layer: int,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    options: AttentionOptions,
) -> list[torch.Tensor]:
    """Attend with every prefill chunk, each over its own context.

    Args:
        step: the step's metadata; the new K and V are in the pool already.
        layer: index of the layer.
        qkv: queries ``[num_heads, N, head_dim]``, keys and values
            ``[num_kv_heads, N, head_dim]`` of the packed tokens.
        options: scale, window, softcap.

    Returns:
        One ``[num_heads, chunk, head_dim]`` for each context.
    """
    query, key, value = qkv
    outputs = []
    for span in step.contexts:
        queries = query[:, span.start : span.end]
        if span.num_computed_tokens:
            # A chunk's queries share one gathered context; decode never does this.
            keys = _gather(step.pool.key_cache(layer), span)
            values = _gather(step.pool.value_cache(layer), span)
        else:
            keys = key[:, span.start : span.end]
            values = value[:, span.start : span.end]
        outputs.append(_attend_chunk(queries, keys, values, options))
    return outputs


def _gather(cache: torch.Tensor, span: ContextSpan) -> torch.Tensor:
    """Collect one context from its blocks: ``[num_kv_heads, seq_len, head_dim]``."""
    blocks = cache.index_select(0, span.block_ids)
    seq_len = span.num_computed_tokens + span.end - span.start
    return blocks.transpose(0, 1).flatten(1, 2)[:, :seq_len]


def _attend_chunk(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    options: AttentionOptions,
) -> torch.Tensor:
    """Causal attention, the last query standing at the last key."""
    num_queries, num_keys = query.shape[1], key.shape[1]
    window = options.window
    windowed = window is not None and window < num_keys
    if options.softcap is None and not windowed and num_queries == num_keys:
        return functional.scaled_dot_product_attention(
            query[None],
            key[None],
            value[None],
            is_causal=True,
            scale=options.scale,
            enable_gqa=True,
        )[0]
    outputs = []
    for begin in range(0, num_queries, MAX_QUERY_TILE):
        end = min(begin + MAX_QUERY_TILE, num_queries)
        first = num_keys - num_queries + begin
        stop = num_keys - num_queries + end
        start = max(0, first - window + 1) if window is not None else 0
        mask = _causal_mask(first, stop, start, window, query.device)
        outputs.append(
            _attend_masked(
                query[:, begin:end],
                key[:, start:stop],
                value[:, start:stop],
                mask,
                options,
            )
        )
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


def _causal_mask(
    first: int, stop: int, start: int, window: int | None, device: torch.device
) -> torch.Tensor:
    """Which keys each query sees: bool ``[stop - first, stop - start]``."""
    queries = torch.arange(first, stop, device=device)[:, None]
    keys = torch.arange(start, stop, device=device)[None, :]
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)


def _attend_masked(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    options: AttentionOptions,
) -> torch.Tensor:
    if options.softcap is None:
        return functional.scaled_dot_product_attention(
            query[None],
            key[None],
            value[None],
            attn_mask=mask,
            scale=options.scale,
            enable_gqa=True,
        )[0]
    num_kv_heads = key.shape[0]
    grouped = query.reshape(num_kv_heads, -1, *query.shape[1:])
    scores = torch.matmul(grouped, key[:, None].transpose(-1, -2)).float()
    scores = _capped(scores * options.scale, options.softcap)
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1).to(value.dtype)
    return torch.matmul(weights, value[:, None]).flatten(0, 1)


def attend_generations(
    step: StepAttention, layer: int, query: torch.Tensor, options: AttentionOptions
) -> torch.Tensor:
    """Attend with one query per generation over its blocks, tile by tile.

    Args:
        step: the step's metadata; the new K and V are in the pool already.
        layer: index of the layer.
        query: ``[num_heads, R, head_dim]``, one token of each of R generations.
        options: scale, window, softcap.

    Returns:
        ``[R, num_heads, head_dim]`` in the query's dtype.
    """
    key_cache = step.pool.key_cache(layer)
    value_cache = step.pool.value_cache(layer)
    num_kv_heads = key_cache.shape[1]
    # [R, num_kv_heads, group, head_dim]: the heads that share a K head in one matrix.
    num_rows, head_dim = query.shape[1:]
    grouped = query.transpose(0, 1).reshape(num_rows, num_kv_heads, -1, head_dim)
    merged = _Merged(grouped)
    for tile in step.decode_tiles(options.window):
        keys = key_cache.index_select(0, tile.block_ids)
        values = value_cache.index_select(0, tile.block_ids)
        queries = grouped.index_select(0, tile.rows)
        # Scaled in float32: a bfloat16 query would round the scale as well.
        scores = torch.matmul(queries, keys.transpose(-1, -2)).float()
        scores = scores * options.scale
        if options.softcap is not None:
            scores = _capped(scores, options.softcap)
        if tile.mask is not None:
            scores += tile.mask
        merged.add(tile, scores, values)
    return merged.result().flatten(1, 2).to(query.dtype)


def _capped(scores: torch.Tensor, softcap: float) -> torch.Tensor:
    return (scores / softcap).tanh_().mul_(softcap)


class _Merged:
    """Running softmax numerator, denominator and maximum of every generation."""

    def __init__(self, grouped: torch.Tensor) -> None:
        shape = grouped.shape
        self._value_dtype = grouped.dtype
        self._maximum = grouped.new_full(shape[:-1], float("-inf"), dtype=torch.float32)
        self._denominator = torch.zeros_like(self._maximum)
        self._numerator = grouped.new_zeros(shape, dtype=torch.float32)
        self._is_empty = True

    def add(self, tile: DecodeTile, scores: torch.Tensor, values: torch.Tensor) -> None:
        """Merge one tile.

        Args:
            tile: whose pairs these are.
            scores: float32 ``[P, num_kv_heads, group, block_size]``, masked.
            values: ``[P, num_kv_heads, block_size, head_dim]``.
        """
        rows = tile.rows
        tile_maximum = scores.amax(-1)
        index = rows[:, None, None].expand_as(tile_maximum)
        maximum = self._maximum.scatter_reduce(0, index, tile_maximum, "amax")
        if not self._is_empty:
            # A row not met yet has maximum -inf on both sides: exp(nan) must be 0.
            rescale = (self._maximum - maximum).exp_().nan_to_num_(0.0)
            self._denominator *= rescale
            self._numerator *= rescale[..., None]
        self._is_empty = False
        self._maximum = maximum
        weights = (scores - maximum.index_select(0, rows)[..., None]).exp_()
        self._denominator.index_add_(0, rows, weights.sum(-1))
        partial = torch.matmul(weights.to(values.dtype), values)
        self._numerator.index_add_(0, rows, partial.float())

    def result(self) -> torch.Tensor:
        """Weighted values: float32 ``[R, num_kv_heads, group, head_dim]``."""
        return self._numerator / self._denominator[..., None]
