"""Paged attention equals plain attention in float64, for every shape it must take."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybrid.backends.pytorch import decode_tiles
from hybrid.backends.pytorch.kv_pool import KVPool
from hybrid.backends.pytorch.paged_attention import (
    AttentionOptions,
    attend_contexts,
    attend_generations,
)
from hybrid.backends.pytorch.step_attention import make_step_attention
from hybrid.bridge import KVLayout, KVOrder
from hybrid.scheduler import (
    BlockCopy,
    GenerateRequest,
    SamplingParams,
    ScheduledRequest,
    StepPlan,
)

CPU = torch.device("cpu")
PARAMS = SamplingParams()
Array = NDArray[np.float64]


def naive(query: Array, key: Array, value: Array, options: AttentionOptions) -> Array:
    """Attend with ``query [Hq, Lq, D]`` over ``key, value [H, Lk, D]``, end to end."""
    group = query.shape[0] // key.shape[0]
    output = np.empty_like(query)
    num_queries, num_keys = query.shape[1], key.shape[1]
    for head in range(query.shape[0]):
        for row in range(num_queries):
            position = num_keys - num_queries + row
            begin = 0
            if options.window is not None:
                begin = max(0, position - options.window + 1)
            keys = key[head // group, begin : position + 1]
            scores = keys @ query[head, row] * options.scale
            if options.softcap is not None:
                scores = np.tanh(scores / options.softcap) * options.softcap
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            output[head, row] = weights @ value[head // group, begin : position + 1]
    return output


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A mixed step over scattered blocks, with and without window and softcap."""
    return {
        "contexts": draw(
            st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), max_size=3)
        ),
        "generations": draw(st.lists(st.integers(0, 40), max_size=4)),
        "block_size": draw(st.sampled_from([1, 4, 16])),
        "kv_heads": draw(st.sampled_from([1, 2])),
        "group": draw(st.sampled_from([1, 3])),
        "window": draw(st.sampled_from([None, None, 1, 5, 17])),
        "softcap": draw(st.sampled_from([None, None, 2.0])),
        "order": draw(st.sampled_from(list(KVOrder))),
        "tile_pairs": draw(st.sampled_from([1, 3, 1000])),
        "seed": draw(st.integers(0, 2**31)),
    }


def make_plan(
    lengths: Sequence[tuple[int, int]],
    num_contexts: int,
    block_size: int,
    seed: int,
    num_blocks: int = 300,
) -> StepPlan:
    """Sequences of (computed, new) tokens over blocks shuffled from a common pool."""
    free = list(np.random.default_rng(seed).permutation(np.arange(1, num_blocks)))
    entries = []
    for index, (computed, new) in enumerate(lengths):
        tokens = (1,) * new
        count = -(-(computed + new) // block_size)
        table = tuple(int(free.pop()) for _ in range(count))
        request = GenerateRequest(f"r{index}", tokens, PARAMS)
        entries.append(ScheduledRequest(request, 0, tokens, computed, table, 1, 1))
    return StepPlan(0, tuple(entries), num_contexts, (), (), ())


@settings(max_examples=60, deadline=None)
@given(cases())
def test_a_mixed_step_equals_plain_attention(case: dict[str, Any]) -> None:
    """Chunks and decode tokens, any window, cap, order, block and tile size."""
    contexts: list[tuple[int, int]] = case["contexts"]
    lengths = [*contexts, *((n, 1) for n in case["generations"])]
    if not lengths:
        return
    check_step(lengths, len(contexts), case)


def check_step(
    lengths: list[tuple[int, int]], num_contexts: int, case: dict[str, Any]
) -> None:
    """Run one layer over a filled pool and compare each sequence with the oracle."""
    block_size: int = case["block_size"]
    heads: int = case["kv_heads"]
    group: int = case["group"]
    rng = np.random.default_rng(case["seed"])
    order: KVOrder = case["order"]
    layout = KVLayout(300, 2, heads, block_size, 8, "float32", order)
    pool = KVPool(layout, CPU)
    plan = make_plan(lengths, num_contexts, block_size, int(rng.integers(1 << 30)))
    options = AttentionOptions(0.3, case["window"], case["softcap"])
    step = make_step_attention(plan, pool, CPU)
    total = int(step.batch.query_start_loc[-1])
    query = rng.standard_normal((heads * group, total, 8)).astype(np.float32)
    history = [
        rng.standard_normal((2, heads, past + new, 8)).astype(np.float32)
        for past, new in lengths
    ]
    new_kv = np.concatenate(
        [h[:, :, past:] for h, (past, _) in zip(history, lengths, strict=True)], axis=2
    )
    fill_history(pool, plan, history)
    key, value = torch.from_numpy(new_kv[0]), torch.from_numpy(new_kv[1])
    pool.write(1, step.places, key, value)
    tile_bytes = layout.block_bytes // 4 * int(case["tile_pairs"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_tiles, "MAX_TILE_BYTES", tile_bytes)
        packed = torch.from_numpy(query)
        outputs = [
            part.numpy()
            for part in attend_contexts(step, 1, (packed, key, value), options)
        ]
        if num_contexts < len(lengths):
            rows = packed[:, step.batch.num_context_tokens :]
            decoded = attend_generations(step, 1, rows, options).numpy()
            outputs += [row[:, None] for row in decoded]
    starts = step.batch.query_start_loc
    for index, output in enumerate(outputs):
        queries = query[:, starts[index] : starts[index + 1]].astype(np.float64)
        keys, values = history[index].astype(np.float64)
        expected = naive(queries, keys, values, options)
        np.testing.assert_allclose(output, expected, atol=2e-5)


def cells(pool: KVPool, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of a layer by (block, head, slot), by the layout's own arithmetic."""
    layout = pool.layout
    shape = (layout.num_blocks, layout.num_kv_heads, layout.block_size, layout.head_dim)
    storage = pool.memory.flatten()
    block, _, _, head, token, dim = layout.strides
    views = []
    for kv in (0, 1):
        first = layout.element_offset(0, layer, kv, 0, 0, 0)
        views.append(storage[first:].as_strided(shape, (block, head, token, dim)))
    return views[0], views[1]


def fill_history(
    pool: KVPool, plan: StepPlan, history: list[NDArray[np.float32]]
) -> None:
    """Put computed tokens where the tables say, garbage in all the rest of the pool."""
    key_cache, value_cache = cells(pool, 1)
    key_cache[:] = 1e4
    value_cache[:] = -1e4
    block_size = pool.layout.block_size
    for entry, kv in zip(plan.scheduled, history, strict=True):
        for position in range(entry.num_computed_tokens):
            block, slot = divmod(position, block_size)
            block_id = entry.block_ids[block]
            keys, values = torch.from_numpy(kv[:, :, position])
            key_cache[block_id, :, slot] = keys
            value_cache[block_id, :, slot] = values


def test_decode_scratch_does_not_grow_with_the_context() -> None:
    """However long the contexts, no tile gathers more than its bytes of K."""
    layout = KVLayout(3000, 1, 2, 16, 64, "float32")
    pool = KVPool(layout, CPU)
    plan = make_plan([(800 * 16 - 1, 1), (3, 1), (700 * 16, 1)], 0, 16, 0, 2000)
    step = make_step_attention(plan, pool, CPU)
    decode = step.decode_tiles(None)
    assert not decode.is_whole
    row_bytes = 16 * 64 * 4
    blocks = 0
    for tile in decode.tiles:
        assert len(tile.rows) * row_bytes <= decode_tiles.MAX_TILE_BYTES
        blocks += len(tile.rows) // 2
    assert 1502 <= blocks < 2 * 1502


@pytest.mark.parametrize("order", list(KVOrder))
def test_block_copies_happen_in_order_and_over_all_layers(order: KVOrder) -> None:
    """A chain of copies carries the first block's bytes to the last."""
    layout = KVLayout(4, 2, 1, 2, 3, "bfloat16", order)
    pool = KVPool(layout, CPU)
    for layer in range(2):
        keys, values = cells(pool, layer)
        keys[1] = layer + 1
        values[1] = -layer - 1
    pool.copy_blocks([BlockCopy(1, 2), BlockCopy(2, 3)])
    for layer in range(2):
        keys, values = cells(pool, layer)
        assert bool((keys[3] == layer + 1).all())
        assert bool((values[3] == -layer - 1).all())
        assert bool((keys[0] == 0).all())


def test_a_pool_starts_as_zeros_on_a_cache_line() -> None:
    """Fresh memory is finite, so a padded read of the null block is harmless."""
    pool = KVPool(KVLayout(3, 2, 2, 4, 8, "bfloat16"), CPU)
    assert not pool.memory.any()
    assert pool.memory.data_ptr() % 64 == 0


def test_what_a_broken_request_left_in_a_block_does_not_reach_the_next() -> None:
    """A block is cleared when it gets its first token: 0 * NaN would be NaN."""
    pool = KVPool(KVLayout(300, 1, 1, 16, 8, "float32"), CPU)
    pool.memory[:] = float("nan")
    kv = torch.randn(1, 18, 8)
    options = AttentionOptions(0.3)
    for lengths, num_contexts, new in (([(0, 17)], 1, 17), ([(17, 1)], 0, 1)):
        plan = make_plan(lengths, num_contexts, 16, seed=3)
        step = make_step_attention(plan, pool, CPU)
        pool.clear_blocks(step.begun_blocks)
        pool.write(0, step.places, kv[:, -new:], kv[:, -new:])
    output = attend_generations(step, 0, torch.randn(1, 1, 8), options)
    assert bool(output.isfinite().all())


@pytest.mark.parametrize("softcap", [None, 50.0])
def test_float16_scores_do_not_overflow(softcap: float | None) -> None:
    """Products beyond float16's range are scaled down before they are made."""
    pool = KVPool(KVLayout(4, 1, 1, 16, 128, "float16"), CPU)
    step = make_step_attention(
        make_plan([(0, 1)], 0, 16, seed=0, num_blocks=4), pool, CPU
    )
    large = torch.full((1, 1, 128), 25.0, dtype=torch.float16)
    pool.write(0, step.places, large, torch.ones_like(large))
    options = AttentionOptions(128**-0.5, softcap=softcap)
    output = attend_generations(step, 0, large, options)
    assert bool((output == 1).all())
