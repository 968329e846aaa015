"""Random mixed steps, and what attention over them must give: naive, in float64.

Knows no pool and no table on the oracle's side: each sequence keeps its K and V.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import numpy as np
import torch

from hybrid.backends.trtllm.attention import Attention, AttentionNeeds
from hybrid.bridge import pack_batch
from hybrid.scheduler import (
    GenerateRequest,
    SamplingParams,
    ScheduledRequest,
    StepPlan,
)

NUM_BLOCKS = 40
MAX_SEQS = 4
MAX_LEN = 96


@dataclass(slots=True)
class Sequence:
    """One sequence as the oracle sees it."""

    request: GenerateRequest
    length: int
    """At which it ends."""
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    kept: list[list[np.ndarray]] = field(default_factory=list)
    """For each layer its tokens' ``[2 * num_kv_heads, head_dim]``, K then V."""


def _new_sequence(rng: Random, name: int) -> Sequence:
    prompt = rng.randint(1, 60)
    request = GenerateRequest(f"r{name}", (1,) * prompt, SamplingParams())
    return Sequence(request, min(prompt + rng.randint(0, 8), MAX_LEN))


def random_steps(
    rng: Random, needs: AttentionNeeds, num_steps: int
) -> Iterator[tuple[StepPlan, list[Sequence]]]:
    """Chunks of prompts beside generations; blocks in any order, used again later."""
    free = list(range(1, NUM_BLOCKS))
    rng.shuffle(free)
    live: list[Sequence] = []
    for step in range(num_steps):
        for done in [one for one in live if one.num_computed >= one.length]:
            live.remove(done)
            free += done.blocks
        while len(live) < rng.randint(1, MAX_SEQS):
            live.append(_new_sequence(rng, 100 * step + len(live)))
        parts: dict[bool, list[tuple[ScheduledRequest, Sequence]]]
        parts = {True: [], False: []}
        for one in live:
            left = len(one.request.prompt_token_ids) - one.num_computed
            count = rng.randint(1, left) if left > 0 else 1
            last = one.num_computed + count
            while len(one.blocks) * needs.block_size < last:
                one.blocks.append(free.pop(0))
            table = tuple(one.blocks)
            entry = ScheduledRequest(
                one.request, 0, (1,) * count, one.num_computed, table, 1, 1
            )
            parts[left > 0].append((entry, one))
        both = parts[True] + parts[False]
        entries = tuple(entry for entry, _ in both)
        yield (
            StepPlan(step, entries, len(parts[True]), (), (), ()),
            [one for _, one in both],
        )
        for entry, one in both:
            one.num_computed += len(entry.token_ids)


def naive(
    queries: np.ndarray, kept: list[np.ndarray], needs: AttentionNeeds, layer: int
) -> np.ndarray:
    """One sequence's newest queries over its tokens: query by query, head by head.

    Args:
        queries: float64 ``[q, num_heads, head_dim]``.
        kept: the sequence's tokens of that layer, this step's included.
        needs: heads, scale, windows.
        layer: whose window it is.
    """
    tokens = np.stack(kept)
    keys, values = np.split(tokens, 2, axis=1)
    group, window = needs.num_heads // needs.num_kv_heads, needs.windows[layer]
    result = np.zeros_like(queries)
    for index in range(len(queries)):
        last = len(kept) - len(queries) + index
        first = 0 if window is None else max(0, last - window + 1)
        for head in range(needs.num_heads):
            of_head = keys[first : last + 1, head // group]
            scores = of_head @ queries[index, head] * needs.scale
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            result[index, head] = weights @ values[first : last + 1, head // group]
    return result


def rounded_to_8_bits(numbers: np.ndarray, scale: float) -> np.ndarray:
    """As an 8-bit cache with a scale holds them: true numbers again."""
    stored = torch.from_numpy(numbers / scale).float().clamp(-448, 448)
    return stored.to(torch.float8_e4m3fn).double().numpy() * scale


def largest_error(
    attention: Attention, needs: AttentionNeeds, seed: int, num_steps: int = 8
) -> float:
    """Run steps through all layers and compare; the largest difference there was."""
    rng, source = Random(seed), torch.Generator().manual_seed(seed)
    width = (needs.num_heads + 2 * needs.num_kv_heads) * needs.head_dim
    dtype, worst = getattr(torch, needs.dtype), 0.0
    is_quantised = needs.kv_dtype != needs.dtype
    for plan, sequences in random_steps(rng, needs, num_steps):
        attention.begin_step(plan, pack_batch(plan))
        num_tokens = plan.num_scheduled_tokens
        for layer in range(len(needs.windows)):
            qkv = torch.randn((num_tokens, width), generator=source).to(dtype)
            output = torch.full((num_tokens, needs.num_heads * needs.head_dim), 7.0)
            output = output.to(dtype)
            attention.attend(layer, qkv, output)
            found = output.double().view(-1, needs.num_heads, needs.head_dim)
            heads = qkv.double().view(num_tokens, -1, needs.head_dim).numpy()
            first = 0
            for index, (entry, one) in enumerate(
                zip(plan.scheduled, sequences, strict=True)
            ):
                rows = slice(first, first + len(entry.token_ids))
                first = rows.stop
                queries, new = np.split(heads[rows], [needs.num_heads], axis=1)
                if is_quantised:
                    new = rounded_to_8_bits(new, needs.kv_scale)
                    if index < plan.num_contexts:
                        queries = rounded_to_8_bits(queries, 1.0)
                if layer == len(one.kept):
                    one.kept.append([])
                one.kept[layer] += list(new)
                expected = naive(queries, one.kept[layer], needs, layer)
                worst = max(worst, float(abs(found[rows].numpy() - expected).max()))
    return worst
