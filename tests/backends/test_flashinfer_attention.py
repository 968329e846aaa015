"""FlashInfer's calls, against a stand-in of its kernels, give what attention is."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from hybrid.backends.pytorch.kv_pool import KVPool
from hybrid.backends.trtllm.attention import AttentionNeeds
from hybrid.backends.trtllm.flashinfer_attention import FlashInferAttention
from hybrid.backends.trtllm.scaled_kv_pool import ScaledKVPool
from hybrid.bridge import KVLayout, KVOrder, pack_batch
from hybrid.scheduler import (
    ConfigError,
    GenerateRequest,
    SamplingParams,
    ScheduledRequest,
    StepPlan,
)
from tests.backends.mixed_steps import MAX_LEN, MAX_SEQS, NUM_BLOCKS, largest_error
from tests.backends.standin_flashinfer import StandIn, installed

NEEDS = AttentionNeeds(
    device="cpu",
    dtype="float32",
    kv_dtype="float32",
    block_size=16,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    windows=(None, 11, None),
    max_model_len=MAX_LEN,
    max_num_seqs=MAX_SEQS,
    scale=0.125,
)
HOPPER, BLACKWELL, WORKSTATION = (9, 0), (10, 0), (12, 0)
CPU = torch.device("cpu")


def make_pool(needs: AttentionNeeds) -> KVPool:
    """A block-first pool as the executor makes it."""
    layout = KVLayout(
        NUM_BLOCKS,
        len(needs.windows),
        needs.num_kv_heads,
        needs.block_size,
        needs.head_dim,
        needs.kv_dtype,
        KVOrder.BLOCK_FIRST,
    )
    if needs.kv_dtype == needs.dtype:
        return KVPool(layout, CPU)
    computed = getattr(torch, needs.dtype)
    return ScaledKVPool(layout, CPU, scale=needs.kv_scale, computed_dtype=computed)


@contextmanager
def made(
    needs: AttentionNeeds, capability: tuple[int, int]
) -> Iterator[tuple[FlashInferAttention, StandIn]]:
    """The implementation on a stand-in GPU."""
    with installed(capability, allows_float32=needs.dtype == "float32") as stand_in:
        needs = replace(needs, compute_capability=capability)
        yield FlashInferAttention(needs, make_pool(needs)), stand_in


def decode_plan(*lengths: int, table: tuple[int, ...] = (3,)) -> StepPlan:
    """Generations of some lengths over one table."""
    request = GenerateRequest("r", (1,), SamplingParams())
    entries = tuple(
        ScheduledRequest(request, 0, (1,), length - 1, table, 1, 1)
        for length in lengths
    )
    return StepPlan(0, entries, 0, (), (), ())


def prompt_plan(num_tokens: int) -> StepPlan:
    """A prompt of one block."""
    tokens = (1,) * num_tokens
    request = GenerateRequest("p", tokens, SamplingParams())
    return StepPlan(
        0, (ScheduledRequest(request, 0, tokens, 0, (4,), 1, 1),), 1, (), (), ()
    )


@pytest.mark.parametrize("capability", [HOPPER, BLACKWELL, (10, 3), WORKSTATION])
@pytest.mark.parametrize("block_size", [16, 32])
def test_mixed_steps_give_attention(
    capability: tuple[int, int], block_size: int
) -> None:
    """Chunks beside generations, blocks in any order, a window on one layer."""
    needs = replace(NEEDS, block_size=block_size)
    with made(needs, capability) as (attention, stand_in):
        assert max(largest_error(attention, needs, seed) for seed in range(3)) < 1e-5
    names = {name for name, _ in stand_in.calls}
    prefill = (
        "trtllm_batch_context_with_kv_cache"
        if capability[0] == 10
        else "trtllm_fmha_v2_prefill"
    )
    assert names == {"trtllm_batch_decode_with_kv_cache", prefill}


@pytest.mark.parametrize("capability", [HOPPER, BLACKWELL, WORKSTATION])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_kernels_own_dtypes(capability: tuple[int, int], dtype: str) -> None:
    """What a GPU runs: rounded once, at the output."""
    needs = replace(NEEDS, dtype=dtype, kv_dtype=dtype)
    with made(needs, capability) as (attention, _):
        # The output's numbers are below 4: one part in 256 (in 2048) of that, halved.
        limit = {"bfloat16": 2.0**-7, "float16": 2.0**-10}[dtype]
        assert largest_error(attention, needs, seed=1) <= limit


@pytest.mark.parametrize("capability", [HOPPER, BLACKWELL])
def test_an_8_bit_cache_is_scaled(capability: tuple[int, int]) -> None:
    """The scale goes into the scores and the output, and nowhere twice."""
    needs = replace(
        NEEDS, dtype="bfloat16", kv_dtype="float8_e4m3fn", kv_scale=0.3, scale=0.2
    )
    with made(needs, capability) as (attention, _):
        assert largest_error(attention, needs, seed=1) <= 2.0**-7


def test_many_query_heads_of_one_kv_head() -> None:
    """Groups are told by the shapes alone."""
    needs = replace(NEEDS, num_heads=6, num_kv_heads=1)
    for capability in (HOPPER, BLACKWELL):
        with made(needs, capability) as (attention, _):
            assert largest_error(attention, needs, seed=3) < 1e-5


def test_the_narrowest_windows() -> None:
    """One token, itself, and two; and one that is wider than any sequence."""
    needs = replace(NEEDS, windows=(1, 2, 4096))
    for capability in (HOPPER, BLACKWELL):
        with made(needs, capability) as (attention, _):
            assert largest_error(attention, needs, seed=5) < 1e-5


def test_a_kv_scale_without_an_8_bit_cache_changes_nothing() -> None:
    """It belongs to the pool, not to the model."""
    needs = replace(NEEDS, kv_scale=5.0)
    with made(needs, HOPPER) as (attention, _):
        assert largest_error(attention, needs, seed=4) < 1e-5


def attend(attention: FlashInferAttention, num_tokens: int) -> torch.Tensor:
    """One layer of a step of some tokens; all K and V are ones."""
    width = NEEDS.num_heads * NEEDS.head_dim
    output = torch.zeros(num_tokens, width)
    qkv = torch.ones(num_tokens, width + 2 * NEEDS.num_kv_heads * NEEDS.head_dim)
    attention.attend(0, qkv, output)
    return output


def addresses(given: dict[str, Any]) -> dict[str, Any]:
    """What a captured launch holds of a call: addresses and host values."""
    fresh = {"query", "out"}  # the graph's own, or the model's
    return {
        name: value.data_ptr() if isinstance(value, torch.Tensor) else value
        for name, value in given.items()
        if name not in fresh | {"kv_cache"}
    } | {"kv_cache": [one.data_ptr() for one in given["kv_cache"]]}


@pytest.mark.parametrize("capability", [HOPPER, BLACKWELL])
def test_decode_steps_differ_in_contents_alone(capability: tuple[int, int]) -> None:
    """Under ``captured`` two steps make the very same call, so a graph serves both."""
    slots = set()
    with made(NEEDS, capability) as (attention, stand_in):
        for plan in (decode_plan(3, 5), decode_plan(20, 33, table=(7, 8, 9))):
            attention.begin_step(plan, pack_batch(plan))
            slots.add(attention._step.slots.data_ptr())
            with attention.captured(2):
                attend(attention, 2)
            # Between them a prompt, which is longer than what decode steps need.
            prompt = prompt_plan(2 * MAX_SEQS)
            attention.begin_step(prompt, pack_batch(prompt))
        (_, one), (_, other) = stand_in.calls
        assert addresses(one) == addresses(other)
        assert len(slots) == 1
        assert one["max_seq_len"] == MAX_LEN
        attention.begin_step(plan, pack_batch(plan))
        attend(attention, 2)
        assert stand_in.calls[-1][1]["max_seq_len"] == 33


def test_a_padded_decode_step_is_nothing_special() -> None:
    """Dummy generations on the null block write there and read what they wrote."""
    with made(NEEDS, HOPPER) as (attention, _):
        plan = decode_plan(1, 1, 1, table=(0,))
        attention.begin_step(plan, pack_batch(plan))
        assert torch.equal(attend(attention, 3), torch.ones(3, 256))


def test_a_step_that_is_too_large_is_refused() -> None:
    """More sequences than the buffers were made for."""
    plan = decode_plan(1, 1, 1, 1, 1)
    with (
        made(NEEDS, HOPPER) as (attention, _),
        pytest.raises(ConfigError, match="5 sequences, must be at most 4"),
    ):
        attention.begin_step(plan, pack_batch(plan))


def test_a_pool_that_the_kernels_cannot_read_is_refused() -> None:
    """Before there is a call: by the block size that they are not compiled for."""
    needs = replace(NEEDS, block_size=8, compute_capability=HOPPER)
    with installed(HOPPER), pytest.raises(ConfigError, match="block_size is 8"):
        FlashInferAttention(needs, make_pool(needs))
