"""What the kernels are pointed to, from step to step, is what the bridge would pack."""

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.backends.cpu.abi import Step
from hybrid.backends.cpu.step_arrays import StepArrays
from hybrid.bridge import csr_block_table, pack_batch
from hybrid.scheduler import (
    GenerateRequest,
    SamplingParams,
    ScheduledRequest,
    StepPlan,
)

BLOCK_SIZE = 4
REQUEST = GenerateRequest("a", (1,), SamplingParams())
Numbers = list[int]


def entry(
    token_ids: tuple[int, ...],
    num_computed: int,
    block_ids: tuple[int, ...],
    num_rows: int = 1,
) -> ScheduledRequest:
    """The share of one sequence."""
    return ScheduledRequest(
        REQUEST, 0, token_ids, num_computed, block_ids, num_rows, min(num_rows, 1)
    )


def plan_of(*entries: ScheduledRequest, num_contexts: int = 0) -> StepPlan:
    """A plan of them."""
    return StepPlan(0, entries, num_contexts, (), (), ())


def read(step: Step) -> tuple[Numbers, Numbers, Numbers, list[Numbers], Numbers]:
    """Ids, positions, starts of queries, needed blocks of each sequence, rows."""

    def numbers(kind: type, address: int | None, count: int) -> Numbers:
        return list((kind * count).from_address(address)) if count else []  # type: ignore[operator]

    num_seqs = step.num_seqs
    positions = numbers(ctypes.c_int64, step.positions, step.num_tokens)
    starts = numbers(ctypes.c_int32, step.query_start, num_seqs + 1)
    table_starts = numbers(ctypes.c_int32, step.table_start, num_seqs + 1)
    ids = numbers(ctypes.c_int32, step.block_ids, table_starts[-1])
    tables = []
    for seq in range(num_seqs):
        last = positions[starts[seq + 1] - 1]
        table = ids[table_starts[seq] : table_starts[seq + 1]]
        tables.append(table[: last // BLOCK_SIZE + 1])
    return (
        numbers(ctypes.c_int64, step.input_ids, step.num_tokens),
        positions,
        starts,
        tables,
        numbers(ctypes.c_int64, step.logits_rows, step.num_rows),
    )


def packed(plan: StepPlan) -> tuple[Numbers, Numbers, Numbers, list[Numbers], Numbers]:
    """The same, by the bridge."""
    batch = pack_batch(plan)
    table = csr_block_table(plan.scheduled, batch.seq_lens, BLOCK_SIZE)
    tables = np.split(table.indices, table.indptr[1:-1])
    return (
        batch.input_ids.tolist(),
        batch.positions.tolist(),
        batch.query_start_loc.tolist(),
        [ids.tolist() for ids in tables],
        batch.logits_rows.tolist(),
    )


@st.composite
def plans(draw: st.DrawFn) -> list[StepPlan]:
    """Steps of sequences that grow, come, go and are cut; few of them are alike."""

    def steps() -> Iterator[StepPlan]:
        tables: dict[int, tuple[int, ...]] = {}
        computed: dict[int, int] = {}
        for _ in range(draw(st.integers(1, 8))):
            chosen = draw(st.lists(st.integers(0, 5), min_size=1, unique=True))
            entries = []
            num_contexts = draw(st.integers(0, 1))
            for index, name in enumerate(chosen):
                length = draw(st.integers(1, 5)) if index < num_contexts else 1
                start = computed.get(name, draw(st.integers(0, 9)))
                end = computed[name] = start + length
                num_blocks = -(-end // BLOCK_SIZE) + draw(st.integers(0, 1))
                table = tables.get(name, ())
                if len(table) < num_blocks:
                    first = 100 * name
                    table += tuple(range(first + len(table), first + num_blocks))
                tables[name] = table
                ids = tuple(draw(st.integers(0, 99)) for _ in range(length))
                rows = draw(st.integers(0, length)) if index == 0 else 1
                entries.append(entry(ids, start, table, rows))
            yield plan_of(*entries, num_contexts=num_contexts)

    return list(steps())


@given(steps=plans())
def test_every_step_is_described_as_the_bridge_packs_it(steps: list[StepPlan]) -> None:
    """Whatever stood in the arrays before."""
    step = Step()
    arrays = StepArrays(step, block_size=BLOCK_SIZE)
    for plan in steps:
        num_rows = arrays.fill(plan)
        assert num_rows == sum(e.num_logits_rows for e in plan.scheduled)
        assert read(step) == packed(plan)


def test_a_table_that_is_too_short_is_refused_in_any_step() -> None:
    """Also where the step before was of the same sequences."""
    arrays = StepArrays(Step(), block_size=BLOCK_SIZE)
    table = (3, 1)
    arrays.fill(plan_of(entry((5,), 7, table), entry((5,), 2, (2,))))
    with pytest.raises(ValueError, match="has 2 blocks of 4 tokens, its tokens need 3"):
        arrays.fill(plan_of(entry((6,), 8, table), entry((5,), 3, (2,))))


def test_a_step_of_nothing_is_described() -> None:
    """As one without sequences."""
    step = Step()
    assert StepArrays(step, block_size=BLOCK_SIZE).fill(plan_of()) == 0
    assert (step.num_tokens, step.num_seqs, step.num_rows) == (0, 0, 0)


def test_what_was_interrupted_is_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays that were being replaced are made anew, also for the tables before."""
    step = Step()
    arrays = StepArrays(step, block_size=BLOCK_SIZE)
    first = plan_of(entry((5,), 2, (1,)), entry((6,), 3, (2,)))
    arrays.fill(first)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(np, "fromiter", interrupt)
        with pytest.raises(KeyboardInterrupt):
            arrays.fill(plan_of(entry((7,), 9, (3, 4, 5))))
    arrays.fill(first)
    assert read(step) == packed(first)
