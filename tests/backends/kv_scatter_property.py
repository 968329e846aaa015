"""What any way of writing K and V into a pool must do, checked with Hypothesis.

Apart from the tests, for one way can only be run in a process of its own.
"""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.bridge import KVLayout, KVOrder
from hybrid.bridge.flashinfer_tables import kv_views

Scatter = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float], None
]
DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn")
GRID = (0.0, 0.5, -1.125, 2.0**-6, 13.0, -240.0, 448.0, -448.0, 480.0, -1024.0)
"""Multiples of a power of two that 8 bits hold, and some beyond the largest: their
rounding is nobody's opinion (Triton's interpreter rounds other numbers wrongly)."""


def layer_cells(
    memory: torch.Tensor, layout: KVLayout, layer: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of one layer, ``[blocks, heads, tokens, dims]``, views of the pool."""
    views = kv_views(layout, layer)
    keys = torch.as_strided(memory, views.shape, views.strides, views.key_offset)
    values = torch.as_strided(memory, views.shape, views.strides, views.value_offset)
    return keys, values


@st.composite
def writes(draw: st.DrawFn) -> dict[str, Any]:
    """A pool, the new rows of some tokens, and a slot for each."""
    layout = KVLayout(
        num_blocks=draw(st.integers(1, 3)),
        num_layers=draw(st.integers(1, 3)),
        num_kv_heads=draw(st.integers(1, 3)),
        block_size=16,
        head_dim=draw(st.sampled_from([16, 48])),
        dtype=draw(st.sampled_from(DTYPES)),
        order=draw(st.sampled_from(list(KVOrder))),
    )
    num_slots = layout.num_blocks * layout.block_size
    slots = draw(st.lists(st.integers(0, num_slots - 1), unique=True, max_size=5))
    computed = layout.dtype
    if computed == "float8_e4m3fn":
        computed = draw(st.sampled_from(DTYPES[:3]))
    return {
        "layout": layout,
        "layer": draw(st.integers(0, layout.num_layers - 1)),
        "slots": slots,
        "num_heads": layout.num_kv_heads * draw(st.integers(1, 2)),
        "computed": computed,
        "kv_scale": 2.0 ** draw(st.integers(-2, 2)),
        "seed": draw(st.integers(0, 99)),
    }


def one_by_one(qkv: torch.Tensor, memory: torch.Tensor, case: dict[str, Any]) -> None:
    """The oracle: number by number, to where the layout itself says it lies."""
    layout: KVLayout = case["layout"]
    flat, row = memory.view(-1), layout.num_kv_heads * layout.head_dim
    is_scaled = layout.dtype == "float8_e4m3fn"
    for token, slot in enumerate(case["slots"]):
        block, place = divmod(slot, layout.block_size)
        for index, number in enumerate(qkv[token, -2 * row :].tolist()):
            field, within = divmod(index, row)
            head, dim = divmod(within, layout.head_dim)
            stored = number
            if is_scaled:
                stored = min(448.0, max(-448.0, number / case["kv_scale"]))
            where = layout.element_offset(block, case["layer"], field, head, place, dim)
            flat[where] = stored


def check_scatter(scatter: Scatter, max_examples: int = 60) -> None:
    """Hold a way of writing to the oracle: all bytes of the pool, written or not."""

    @settings(deadline=None, max_examples=max_examples, database=None)
    @given(writes())
    def check(case: dict[str, Any]) -> None:
        layout: KVLayout = case["layout"]
        source = torch.Generator().manual_seed(case["seed"])
        width = (case["num_heads"] + 2 * layout.num_kv_heads) * layout.head_dim
        shape = (len(case["slots"]), width)
        numbers = torch.tensor(GRID)[torch.randint(len(GRID), shape, generator=source)]
        scale = case["kv_scale"] if layout.dtype == "float8_e4m3fn" else 1.0
        qkv = (numbers * scale).to(getattr(torch, case["computed"]))
        dtype = getattr(torch, layout.dtype)
        memory = torch.full(layout.shape, 3.0).to(dtype)
        expected = memory.clone()
        one_by_one(qkv, expected, case)
        keys, values = layer_cells(memory, layout, case["layer"])
        slots = torch.tensor(case["slots"], dtype=torch.int64)
        scatter(qkv, keys, values, slots, case["kv_scale"])
        assert torch.equal(memory.view(torch.uint8), expected.view(torch.uint8))

    check()
