"""Packed arrays and tables equal what a naive reader of the plan says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.bridge import (
    NULL_BLOCK,
    csr_block_table,
    pack_batch,
    padded_block_table,
    slot_mapping,
)
from hybrid.scheduler import (
    GenerateRequest,
    SamplingParams,
    ScheduledRequest,
    StepPlan,
)

PARAMS = SamplingParams()


def make_entry(
    index: int,
    token_ids: tuple[int, ...],
    num_computed: int,
    block_ids: tuple[int, ...],
    num_logits_rows: int = 1,
) -> ScheduledRequest:
    """One scheduled sequence with a request of its own."""
    request = GenerateRequest(f"r{index}", token_ids, PARAMS)
    return ScheduledRequest(
        request, 0, token_ids, num_computed, block_ids, num_logits_rows, 1
    )


@st.composite
def plans(draw: st.DrawFn) -> tuple[StepPlan, int]:
    """A plan of up to six sequences with disjoint, scattered blocks; a block size."""
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    num_contexts = draw(st.integers(0, 3))
    num_seqs = num_contexts + draw(st.integers(0, 3))
    free = draw(st.permutations(range(1, 400)))
    entries = []
    for index in range(num_seqs):
        is_context = index < num_contexts
        length = draw(st.integers(1, 20)) if is_context else 1
        computed = draw(st.integers(0, 25))
        num_blocks = -(-(computed + length) // block_size) + draw(st.integers(0, 2))
        table, free = tuple(free[:num_blocks]), free[num_blocks:]
        tokens = tuple(
            draw(st.lists(st.integers(0, 999), min_size=length, max_size=length))
        )
        rows = draw(st.integers(0, length))
        entries.append(make_entry(index, tokens, computed, table, rows))
    return StepPlan(0, tuple(entries), num_contexts, (), (), ()), block_size


@given(plans())
def test_every_token_has_its_id_position_and_slot(drawn: tuple[StepPlan, int]) -> None:
    """Ids, positions, lengths and slots are those of a loop over the plan."""
    plan, block_size = drawn
    batch = pack_batch(plan)
    table = csr_block_table(plan.scheduled, batch.seq_lens, block_size)
    ids, positions, slots, rows = [], [], [], []
    for entry in plan.scheduled:
        for offset, token_id in enumerate(entry.token_ids):
            position = entry.num_computed_tokens + offset
            block = entry.block_ids[position // block_size]
            if offset >= len(entry.token_ids) - entry.num_logits_rows:
                rows.append(len(ids))
            ids.append(token_id)
            positions.append(position)
            slots.append(block * block_size + position % block_size)
    assert batch.input_ids.tolist() == ids
    assert batch.positions.tolist() == positions
    assert batch.logits_rows.tolist() == rows
    assert slot_mapping(batch, table, block_size).tolist() == slots
    assert len(set(slots)) == len(slots), "two tokens share a slot"
    lengths = [len(entry.token_ids) for entry in plan.scheduled]
    assert batch.query_lens.tolist() == lengths
    assert batch.num_context_tokens == sum(lengths[: plan.num_contexts])


@given(plans())
def test_tables_hold_the_blocks_of_the_tokens_and_no_more(
    drawn: tuple[StepPlan, int],
) -> None:
    """CSR and padded tables agree with the plan; unused entries are the null block."""
    plan, block_size = drawn
    batch = pack_batch(plan)
    table = csr_block_table(plan.scheduled, batch.seq_lens, block_size)
    padded = padded_block_table(table)
    for index, entry in enumerate(plan.scheduled):
        seq_len = entry.num_computed_tokens + len(entry.token_ids)
        expected = list(entry.block_ids[: -(-seq_len // block_size)])
        begin, end = table.indptr[index : index + 2]
        assert table.indices[begin:end].tolist() == expected
        assert table.last_block_len[index] == (seq_len - 1) % block_size + 1
        row = padded[index].tolist()
        assert row[: len(expected)] == expected
        assert set(row[len(expected) :]) <= {NULL_BLOCK}


def test_arrays_have_the_documented_dtypes() -> None:
    """Kernels read int32 tables and lengths, int64 ids, positions and slots."""
    plan = StepPlan(0, (make_entry(0, (1, 2, 3), 4, (5, 6, 7)),), 1, (), (), ())
    batch = pack_batch(plan)
    table = csr_block_table(plan.scheduled, batch.seq_lens, 4)
    for array in (batch.input_ids, batch.positions, batch.logits_rows):
        assert array.dtype == np.int64
    assert slot_mapping(batch, table, 4).dtype == np.int64
    for array in (
        batch.query_start_loc,
        batch.num_computed_tokens,
        batch.seq_lens,
        table.indptr,
        table.indices,
        table.last_block_len,
        padded_block_table(table),
    ):
        assert array.dtype == np.int32


def test_an_empty_plan_packs_to_nothing() -> None:
    """A step without sequences has empty arrays, not an error."""
    plan = StepPlan(0, (), 0, (), (), ())
    batch = pack_batch(plan)
    table = csr_block_table((), batch.seq_lens, 16)
    assert batch.input_ids.size == batch.logits_rows.size == 0
    assert slot_mapping(batch, table, 16).size == 0
    assert padded_block_table(table).shape == (0, 0)


def test_a_table_too_short_for_its_tokens_is_refused() -> None:
    """Reading past a table would read another sequence's memory."""
    entry = make_entry(0, (1, 2), 4, (9,))
    plan = StepPlan(0, (entry,), 1, (), (), ())
    with pytest.raises(ValueError, match="has 1 blocks of 4 tokens"):
        csr_block_table(plan.scheduled, pack_batch(plan).seq_lens, 4)


def test_a_padded_table_is_as_wide_as_asked_or_refuses() -> None:
    """A fixed width serves preallocated buffers; one too narrow is an error."""
    entry = make_entry(0, (1,) * 9, 0, (3, 1, 2))
    plan = StepPlan(0, (entry,), 1, (), (), ())
    table = csr_block_table(plan.scheduled, pack_batch(plan).seq_lens, 4)
    assert padded_block_table(table, 5).tolist() == [[3, 1, 2, 0, 0]]
    with pytest.raises(ValueError, match="max_blocks=2"):
        padded_block_table(table, 2)
