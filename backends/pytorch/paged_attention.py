"""Attention over a paged KV pool in plain torch: one path for chunks, one for decode.

Pure functions over tensors; knows no model. Decode never assembles a long context: it
walks tiles of bounded size (``decode_tiles``) and merges the segments of one sequence
by their softmax maxima and sums (as Flash-Decoding does; Dao et al., 2023).
"""

import math
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import torch
from torch.nn import functional

from .kv_pool import KVPool
from .step_attention import ContextSpan, StepAttention, TileTensors

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
        if span.num_computed_tokens or not step.pool.is_exact:
            # A chunk's queries share one gathered context; decode never does this.
            # From a rounded cache also a first chunk reads what later ones will.
            keys = _of_context(step.pool.gather_keys(layer, span.rows), span, key)
            values = _of_context(step.pool.gather_values(layer, span.rows), span, key)
        else:
            keys = key[:, span.start : span.end]
            values = value[:, span.start : span.end]
        outputs.append(_attend_chunk(queries, keys, values, options))
    return outputs


def _of_context(
    gathered: torch.Tensor, span: ContextSpan, key: torch.Tensor
) -> torch.Tensor:
    """Cut one context out of its blocks: ``[num_kv_heads, seq_len, head_dim]``."""
    seq_len = span.num_computed_tokens + span.end - span.start
    return gathered.view(key.shape[0], -1, key.shape[2])[:, :seq_len]


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
    exact, rest = _split_scale(options.scale)
    grouped = query.reshape(num_kv_heads, -1, *query.shape[1:]) * exact
    scores = torch.matmul(grouped, key[:, None].transpose(-1, -2)).float()
    scores = _capped(scores * rest, options.softcap)
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
    num_kv_heads = step.pool.layout.num_kv_heads
    num_rows, head_dim = query.shape[1:]
    # [R, num_kv_heads, group, head_dim]: the heads that share a K head in one matrix.
    grouped = query.transpose(0, 1).reshape(num_rows, num_kv_heads, -1, head_dim)
    # A power of two is exact in every dtype, and keeps float16 products in range.
    exact, rest = _split_scale(options.scale)
    grouped = grouped * exact
    options = replace(options, scale=rest)
    decode = step.decode_tiles(options.window)
    parts = [
        _attend_tile(tile, grouped, step.pool, layer, options) for tile in decode.tiles
    ]
    part = (
        parts[0]
        if len(parts) == 1
        else _Part(*map(torch.cat, zip(*parts, strict=True)))
    )
    if decode.is_whole:
        output = part.numerator / part.denominator
        if decode.order is not None:
            output = output.index_select(0, decode.order)
    else:
        generations = torch.cat([tile.generations for tile in decode.tiles])
        output = _merge(part, generations, num_rows)
    return output.flatten(1, 2).to(query.dtype)


class _Part(NamedTuple):
    """Softmax of S segments, unfinished; float32."""

    numerator: torch.Tensor
    """``[S, num_kv_heads, group, head_dim]``."""
    denominator: torch.Tensor
    """``[S, num_kv_heads, group, 1]``."""
    maximum: torch.Tensor
    """As the denominator: what was subtracted from the scores."""


def _attend_tile(
    tile: TileTensors,
    grouped: torch.Tensor,
    pool: KVPool,
    layer: int,
    options: AttentionOptions,
) -> _Part:
    """Attend with each segment's query over the segment's blocks."""
    num_segments = len(tile.generations)
    shape = (num_segments, grouped.shape[1], -1, grouped.shape[3])
    keys = pool.gather_keys(layer, tile.rows).view(shape)
    values = pool.gather_values(layer, tile.rows).view(shape)
    queries = grouped.index_select(0, tile.generations)
    scores = torch.matmul(queries, keys.transpose(-1, -2))
    if options.softcap is None:
        scores = torch.add(tile.mask, scores, alpha=options.scale)
    else:
        capped = _capped(scores.float() * options.scale, options.softcap)
        scores = tile.mask + capped
    maximum = scores.amax(-1, keepdim=True)
    weights = scores.sub_(maximum).exp_()
    denominator = weights.sum(-1, keepdim=True)
    numerator = torch.matmul(weights.to(values.dtype), values)
    return _Part(numerator.float(), denominator, maximum)


def _merge(part: _Part, generations: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Bring the segments of each generation together.

    Args:
        part: all segments of the step.
        generations: int64 ``[S]``, whose each segment is.
        num_rows: number of generations R.

    Returns:
        float32 ``[R, num_kv_heads, group, head_dim]``.
    """
    shape = (num_rows, *part.maximum.shape[1:])
    index = generations[:, None, None, None].expand_as(part.maximum)
    lowest = part.maximum.new_full(shape, float("-inf"))
    maximum = lowest.scatter_reduce_(0, index, part.maximum, "amax")
    weights = (part.maximum - maximum.index_select(0, generations)).exp_()
    numerator = part.numerator.new_zeros((*shape[:-1], part.numerator.shape[-1]))
    numerator.index_add_(0, generations, part.numerator * weights)
    denominator = part.denominator.new_zeros(shape)
    denominator.index_add_(0, generations, part.denominator * weights)
    return numerator / denominator


def _split_scale(scale: float) -> tuple[float, float]:
    """Split into the power of two at or below it and the factor that is left."""
    mantissa, exponent = math.frexp(scale)
    return math.ldexp(0.5, exponent), mantissa * 2


def _capped(scores: torch.Tensor, softcap: float) -> torch.Tensor:
    return (scores / softcap).tanh_().mul_(softcap)
