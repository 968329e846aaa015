"""How long the arrays of one step take: 256 requests must stay under a millisecond."""

from collections.abc import Callable

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hybrid.bridge import csr_block_table, pack_batch, padded_block_table, slot_mapping
from hybrid.scheduler import (
    GenerateRequest,
    SamplingParams,
    ScheduledRequest,
    StepPlan,
)

BLOCK_SIZE = 16
SEQ_LEN = 512


def decode_plan(num_seqs: int) -> StepPlan:
    """``num_seqs`` generations, each with 512 tokens in scattered blocks."""
    num_blocks = SEQ_LEN // BLOCK_SIZE
    ids = np.random.default_rng(0).permutation(num_seqs * num_blocks) + 1
    tables = ids.reshape(num_seqs, num_blocks).tolist()
    params = SamplingParams()
    entries = tuple(
        ScheduledRequest(
            GenerateRequest(str(index), (1,), params),
            0,
            (7,),
            SEQ_LEN - 1,
            tuple(table),
            1,
            1,
        )
        for index, table in enumerate(tables)
    )
    return StepPlan(0, entries, 0, (), (), ())


def all_arrays(plan: StepPlan) -> None:
    """Everything that any executor takes."""
    batch = pack_batch(plan)
    table = csr_block_table(plan.scheduled, batch.seq_lens, BLOCK_SIZE)
    slot_mapping(batch, table, BLOCK_SIZE)
    padded_block_table(table)


@pytest.mark.parametrize("num_seqs", [16, 128, 256])
def test_bridge_arrays(benchmark: BenchmarkFixture, num_seqs: int) -> None:
    """Packed batch, slot mapping, CSR and padded tables of one decode step."""
    plan = decode_plan(num_seqs)
    run: Callable[[StepPlan], None] = all_arrays
    benchmark(run, plan)
