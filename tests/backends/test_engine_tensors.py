"""Each input of a compiled engine, by name, for contexts and generations."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hybrid.backends.pytorch.kv_pool import KVPool
from hybrid.backends.trtllm.engine_tensors import INPUT_DTYPES, EngineTensors
from hybrid.bridge import KVLayout, KVOrder, pack_batch
from hybrid.bridge.lent_memory import LentMemory
from hybrid.scheduler.errors import ConfigError, ExecutorFailed
from hybrid.scheduler.plan import StepPlan
from tests.backends.engine_plans import DECODE, FIRST, LONG, MIXED, SHORT, plan_of

LAYOUT = KVLayout(
    num_blocks=8,
    num_layers=3,
    num_kv_heads=2,
    block_size=32,
    head_dim=16,
    order=KVOrder.BLOCK_FIRST,
)
CPU = torch.device("cpu")


def make_tensors(pool: KVPool) -> EngineTensors:
    """For steps of four sequences and 64 tokens, sequences of 96."""
    return EngineTensors(pool, max_num_seqs=4, max_num_tokens=64, max_model_len=96)


def fill(tensors: EngineTensors, plan: StepPlan) -> dict[str, torch.Tensor]:
    """One step's inputs."""
    return dict(tensors.fill(plan, pack_batch(plan)))


def test_a_mixed_step_has_these_values() -> None:
    """8 tokens of a context with 32 cached, and a generation after a prompt of five."""
    pool = KVPool(LAYOUT, CPU)
    inputs = fill(make_tensors(pool), MIXED)
    # Block b's K lies 2 * 3 layers cells after that of block b - 1, its V one further.
    offsets = [[[[18, 6, 0], [19, 7, 0]], [[36, 0, 0], [37, 0, 0]]]]
    expected = {
        "input_ids": [*LONG[32:], 77],
        "position_ids": [32, 33, 34, 35, 36, 37, 38, 39, 5],
        "last_token_ids": [8, 9],
        "context_lengths": [8, 5],
        "host_context_lengths": [8, 5],
        "sequence_length": [40, 6],
        "host_past_key_value_lengths": [40, 5],
        "host_request_types": [0, 1],
        "host_max_attention_window_sizes": [96, 96, 96],
        "host_sink_token_length": [0],
        "kv_cache_block_offsets": offsets,
        "host_kv_cache_block_offsets": offsets,
        "host_kv_cache_pool_pointers": [[pool.memory.data_ptr(), 0]],
        "host_kv_cache_pool_mapping": [[0, 0], [0, 1], [0, 2]],
        "host_runtime_perf_knobs": [1] + [-1] * 15,
        "host_context_progress": [0],
        "cache_indirection": [[[0] * 96]] * 2,
    }
    assert {name: tensor.tolist() for name, tensor in inputs.items()} == expected


def test_every_input_has_its_dtype_and_no_gaps() -> None:
    """An engine is given addresses: what a dtype or a stride hides, it misreads."""
    inputs = fill(make_tensors(KVPool(LAYOUT, CPU)), MIXED)
    assert {name: tensor.dtype for name, tensor in inputs.items()} == INPUT_DTYPES
    assert all(tensor.is_contiguous() for tensor in inputs.values())


def test_buffers_stay_where_they_are() -> None:
    """Steps of other sizes are written in the same places, and read as their own."""
    tensors = make_tensors(KVPool(LAYOUT, CPU))
    steps = []
    for plan in (FIRST, MIXED, DECODE, FIRST):
        inputs = fill(tensors, plan)
        fresh = fill(make_tensors(KVPool(LAYOUT, CPU)), plan)
        for name in set(INPUT_DTYPES) - {"host_kv_cache_pool_pointers"}:
            assert torch.equal(inputs[name], fresh[name]), name
        steps.append({name: tensor.data_ptr() for name, tensor in inputs.items()})
    assert all(step == steps[0] for step in steps)


def test_what_device_and_host_read_lies_apart() -> None:
    """A device's copy is another array, even where the device is the CPU."""
    inputs = fill(make_tensors(KVPool(LAYOUT, CPU)), MIXED)
    for name in ("context_lengths", "kv_cache_block_offsets"):
        assert inputs[name].data_ptr() != inputs[f"host_{name}"].data_ptr()


def test_only_what_a_device_reads_lies_on_it() -> None:
    """By name: what begins with host_ is followed by the host, the rest is not."""
    device = torch.device("meta")
    pool: Any = SimpleNamespace(
        layout=LAYOUT,
        memory=torch.empty(LAYOUT.shape, device=device),
        # A pool of that device would have no address.
        lent=LentMemory("KV pool", torch.zeros(1)),
    )
    for name, tensor in fill(make_tensors(pool), MIXED).items():
        assert tensor.device == (CPU if name.startswith("host_") else device), name


@pytest.mark.gpu
def test_a_gpu_is_given_the_same_numbers() -> None:
    """Step after step, through pinned memory that stays."""
    device = torch.device("cuda")
    tensors = make_tensors(KVPool(LAYOUT, device))
    for plan in (FIRST, MIXED, DECODE):
        expected = fill(make_tensors(KVPool(LAYOUT, CPU)), plan)
        inputs = fill(tensors, plan)
        for name in set(INPUT_DTYPES) - {"host_kv_cache_pool_pointers"}:
            assert inputs[name].is_cuda != name.startswith("host_"), name
            assert torch.equal(inputs[name].cpu(), expected[name]), name


def test_the_pools_address_is_borrowed() -> None:
    """Held until the tensors are closed; a pool that moved is written to no more."""
    pool = KVPool(LAYOUT, CPU)
    tensors = make_tensors(pool)
    with pytest.raises(ExecutorFailed, match="pointers to it are held by engine"):
        pool.lent.release()
    pool.lent._tensor = torch.zeros(1)
    with pytest.raises(ExecutorFailed, match="pointers to it are out"):
        fill(tensors, MIXED)
    tensors.close()
    pool.lent.release()


def test_a_step_that_is_too_large_is_refused() -> None:
    """By the engine's limit, the option and the flag of the build."""
    tensors = make_tensors(KVPool(LAYOUT, CPU))
    long = FIRST.scheduled[0]
    entries = [long._replace(token_ids=LONG[:24], block_ids=(i,)) for i in range(1, 4)]
    with pytest.raises(ConfigError, match=r"72 tokens.*built for 64.*max_num_tokens"):
        fill(tensors, plan_of(3, *entries))
    five = replace(DECODE, scheduled=DECODE.scheduled[:1] * 5)
    with pytest.raises(ConfigError, match="5 sequences, must be at most 4"):
        fill(tensors, five)
    table = plan_of(1, long._replace(block_ids=(1, 2, 3, 4)))
    with pytest.raises(ConfigError, match="table of 4 blocks, must be at most 3"):
        fill(tensors, table)


def test_a_generations_context_length_is_its_prompts() -> None:
    """It stays what it was, however long the sequence grows."""
    inputs = fill(make_tensors(KVPool(LAYOUT, CPU)), DECODE)
    assert inputs["input_ids"].tolist() == [201, 88]
    assert inputs["host_past_key_value_lengths"].tolist() == [40, 6]
    assert inputs["context_lengths"].tolist() == [len(LONG), len(SHORT)]
