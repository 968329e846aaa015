"""FlashInfer's views and tables name the bytes and blocks that our own layouts name."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.bridge import (
    ELEMENT_BYTES,
    KVLayout,
    KVOrder,
    csr_block_table,
    pack_batch,
    padded_block_table,
    slot_mapping,
)
from hybrid.bridge.flashinfer_tables import (
    BLOCK_SIZES,
    BlockTables,
    KVViews,
    kv_views,
)
from hybrid.scheduler import (
    ConfigError,
    GenerateRequest,
    SamplingParams,
    ScheduledRequest,
    StepPlan,
)

BASE = KVLayout(num_blocks=6, num_layers=3, num_kv_heads=2, block_size=16, head_dim=16)
MAX_SEQS, MAX_BLOCKS = 4, 5


def entry(
    table: tuple[int, ...], num_computed_tokens: int = 0, num_tokens: int = 1
) -> ScheduledRequest:
    """A sequence that owns some blocks and computes some tokens now."""
    request = GenerateRequest("r", (1,), SamplingParams())
    return ScheduledRequest(
        request, 0, (1,) * num_tokens, num_computed_tokens, table, 1, 1
    )


@st.composite
def layouts(draw: st.DrawFn) -> KVLayout:
    """Pools that the kernels take: both orders, all element sizes."""
    return KVLayout(
        num_blocks=draw(st.integers(1, 5)),
        num_layers=draw(st.integers(1, 4)),
        num_kv_heads=draw(st.integers(1, 3)),
        block_size=draw(st.sampled_from(BLOCK_SIZES)),
        head_dim=draw(st.sampled_from([16, 48])),
        dtype=draw(st.sampled_from(sorted(ELEMENT_BYTES))),
        order=draw(st.sampled_from(list(KVOrder))),
    )


def strided(memory: np.ndarray, views: KVViews, offset: int) -> np.ndarray:
    """K or V by the numbers alone, as a kernel addresses it."""
    flat = memory.reshape(-1)[offset:]
    strides = [stride * memory.itemsize for stride in views.strides]
    return np.lib.stride_tricks.as_strided(flat, views.shape, strides)


@settings(deadline=None)
@given(layouts(), st.data())
def test_the_views_are_the_layouts_own(layout: KVLayout, data: st.DataObject) -> None:
    """By address, not only by value: each lies where the layout's logical view does."""
    number = np.dtype(f"u{ELEMENT_BYTES[layout.dtype]}")
    memory = np.zeros(layout.shape, dtype=number)
    logical = memory.transpose(layout.to_logical)
    layer = data.draw(st.integers(0, layout.num_layers - 1))
    views = kv_views(layout, layer)
    for field, offset in ((0, views.key_offset), (1, views.value_offset)):
        own, found = logical[:, layer, field], strided(memory, views, offset)
        assert found.__array_interface__["data"] == own.__array_interface__["data"]
        assert found.shape == own.shape
        used = [axis for axis, size in enumerate(own.shape) if size > 1]
        assert [found.strides[a] for a in used] == [own.strides[a] for a in used]


@given(layouts())
def test_every_cell_lies_in_the_pool_and_none_twice(layout: KVLayout) -> None:
    """First and last elements of all cells of all layers: as many as there are."""
    size = layout.num_blocks * layout.block_bytes // ELEMENT_BYTES[layout.dtype]
    starts = []
    for layer in range(layout.num_layers):
        views = kv_views(layout, layer)
        for offset in (views.key_offset, views.value_offset):
            blocks = range(layout.num_blocks)
            starts += [offset + block * views.strides[0] for block in blocks]
    assert len(set(starts)) == 2 * layout.num_layers * layout.num_blocks
    assert min(starts) == 0
    assert max(starts) == size - layout.cell_elements
    assert {start % layout.cell_elements for start in starts} == {0}


@st.composite
def histories(draw: st.DrawFn) -> list[StepPlan]:
    """Some steps whose tables grow, shrink, change rows, come and go."""
    one = st.lists(st.integers(1, 9), min_size=1, max_size=MAX_BLOCKS).map(tuple)
    plans = []
    for step in range(draw(st.integers(1, 6))):
        scheduled = []
        for table in draw(st.lists(one, min_size=1, max_size=MAX_SEQS)):
            last = draw(st.integers(len(table) * 16 - 15, len(table) * 16))
            computed = draw(st.integers(0, last - 1))
            scheduled.append(entry(table, computed, last - computed))
        plans.append(StepPlan(step, tuple(scheduled), len(scheduled), (), (), ()))
    return plans


@given(histories())
def test_rows_and_slots_are_those_of_a_fresh_table(history: list[StepPlan]) -> None:
    """After any steps, and rows that are not reported have not changed."""
    kept = BlockTables(block_size=16, max_num_seqs=MAX_SEQS, max_num_blocks=MAX_BLOCKS)
    address = kept.array.ctypes.data
    for plan in history:
        before, batch = kept.array.copy(), pack_batch(plan)
        written = kept.update(plan.scheduled)
        csr = csr_block_table(plan.scheduled, batch.seq_lens, 16)
        fresh = padded_block_table(csr, MAX_BLOCKS)
        assert np.array_equal(kept.array[: len(fresh)], fresh)
        same = [row for row in range(MAX_SEQS) if row not in written]
        assert np.array_equal(kept.array[same], before[same])
        assert np.array_equal(kept.slot_mapping(batch), slot_mapping(batch, csr, 16))
    assert kept.array.ctypes.data == address
    assert (kept.array.dtype, kept.array.flags.c_contiguous) == (np.int32, True)


def test_a_decode_step_writes_only_tables_that_grew() -> None:
    """Equal tables, the same tuple or another, are left alone."""
    tables = BlockTables(block_size=16, max_num_seqs=2, max_num_blocks=4)
    again = tuple(range(1, 3))
    assert tables.update([entry((1, 2)), entry((3,))]) == [0, 1]
    assert tables.update([entry(again), entry((3,))]) == []
    assert tables.update([entry((1, 2)), entry((3, 4))]) == [1]


def test_the_allocator_is_asked_once_for_the_whole_table() -> None:
    """So that it may be pinned memory, and stays where a copy was told it lies."""
    asked = []

    def allocate(shape: tuple[int, ...]) -> np.ndarray:
        asked.append(np.zeros(shape, dtype=np.int32))
        return asked[-1]

    tables = BlockTables(
        block_size=16, max_num_seqs=2, max_num_blocks=3, allocate=allocate
    )
    tables.update([entry((4, 5, 6))])
    (memory,) = asked
    assert memory.tolist() == [[4, 5, 6], [0, 0, 0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 8}, "block_size is 8, must be one of 16, 32, 64, 128"),
        ({"block_size": 256}, "block_size is 256"),
        ({"head_dim": 24}, "head_dim is 24, must be a multiple of 16 up to 256"),
        ({"head_dim": 512}, "head_dim is 512"),
        ({"kv_factor": 1}, "kv_factor is 1, must be 2"),
        ({"num_blocks": 2**29}, "3,221,225,472 cells, must be at most 2,147,483,647"),
    ],
)
def test_what_the_kernels_cannot_read_is_refused(
    change: dict[str, int], message: str
) -> None:
    """By the value and the limit, before there is a pointer."""
    with pytest.raises(ConfigError, match=message):
        kv_views(replace(BASE, **change), 0)


def test_token_major_and_padded_cells_are_refused() -> None:
    """Heads outermost and no gaps, whatever memory the numbers were made of."""
    token_major = (1024, 16, 32, 1)
    padded = (1024, 16 * 24, 24, 1)
    for strides in (token_major, padded):
        with pytest.raises(ConfigError, match="heads outermost, dense"):
            KVViews((6, 2, 16, 16), strides, 0, 512)


def test_a_layer_that_is_not_there_is_refused() -> None:
    """By the layout's own check."""
    with pytest.raises(IndexError, match="layer is 3"):
        kv_views(BASE, 3)


def test_what_does_not_fit_the_table_is_refused() -> None:
    """More sequences or longer tables than there are places for."""
    tables = BlockTables(block_size=16, max_num_seqs=1, max_num_blocks=2)
    with pytest.raises(ConfigError, match="2 sequences, must be at most 1"):
        tables.update([entry((1,)), entry((2,))])
    with pytest.raises(ConfigError, match="3 blocks, must be at most 2"):
        tables.update([entry((1, 2, 3))])
