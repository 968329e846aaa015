"""OpenVINO reads and writes our pool's own memory, block by block."""

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from hybrid_openvino.kv_pool import CellShape, KVPool
from hybrid_openvino.step_inputs import StepInputMaker, make_step_inputs
from hypothesis import given
from hypothesis import strategies as st
from openvino_stand import BLOCKS, TOKEN_IDS, load, logits

from hybrid.api import (
    BlockCopy,
    ConfigError,
    GenerateRequest,
    KVLayout,
    KVOrder,
    SamplingParams,
    ScheduledRequest,
    StepPlan,
)

PLAIN = CellShape((2, 32, 16), ov.Type.f32)


def test_a_layers_tensor_is_the_pools_memory() -> None:
    """Written on one side, seen on the other, at the address the layout names."""
    pool = KVPool(PLAIN, PLAIN, 3, 5)
    layout = KVLayout(
        num_blocks=5,
        num_layers=3,
        num_kv_heads=2,
        block_size=32,
        head_dim=16,
        dtype="float32",
        order=KVOrder.LAYER_FIRST,
    )
    start = pool.key_tensor(0).data.ctypes.data
    for layer in range(3):
        for kv, tensor in enumerate((pool.key_tensor(layer), pool.value_tensor(layer))):
            offset = layout.element_offset(4, layer, kv, 1, 31, 15)
            view = tensor.data
            assert view.shape == (5, 2, 32, 16)
            last = view[4, 1, 31, 15:]
            assert last.ctypes.data == start + 4 * offset
            view[4, 1, 31, 15] = layer + 10 * kv + 1
    assert [pool.key_tensor(n).data[4, 1, 31, 15] for n in range(3)] == [1, 2, 3]
    assert [pool.value_tensor(n).data[4, 1, 31, 15] for n in range(3)] == [11, 12, 13]


def test_tensors_begin_on_cache_lines() -> None:
    """OpenVINO would copy any that did not, and write into its copy."""
    odd = CellShape((3, 33, 7), ov.Type.u8)
    pool = KVPool(odd, PLAIN, 3, 5)
    for layer in range(3):
        assert pool.key_tensor(layer).data.ctypes.data % 64 == 0
        assert pool.value_tensor(layer).data.ctypes.data % 64 == 0


def test_blocks_are_copied_in_order_over_all_layers() -> None:
    """The second copy sees the first one's result."""
    pool = KVPool(PLAIN, PLAIN, 2, 4)
    for layer in range(2):
        pool.key_tensor(layer).data[1] = layer + 1
        pool.value_tensor(layer).data[1] = -layer - 1
    pool.copy_blocks([BlockCopy(1, 2), BlockCopy(2, 3)])
    for layer in range(2):
        assert (pool.key_tensor(layer).data[1:] == layer + 1).all()
        assert (pool.value_tensor(layer).data[1:] == -layer - 1).all()


def test_a_pool_beyond_all_memory_is_refused() -> None:
    """With the bytes, before anything is read."""
    with pytest.raises(ConfigError, match=r"KV pool of [\d,]+ bytes"):
        KVPool(PLAIN, PLAIN, 1000, 2**40)


def test_openvino_writes_the_blocks_of_the_table_and_no_other(llama_ir: Path) -> None:
    """The null block and those of others stay as they were."""
    executor = load(llama_ir)
    logits(executor)
    pool = executor._pool
    assert pool is not None
    for layer in range(3):
        for tensor in (pool.key_tensor(layer), pool.value_tensor(layer)):
            written = np.flatnonzero(tensor.data.reshape(8, -1).any(axis=1))
            assert written.tolist() == sorted(BLOCKS)
            tail = tensor.data[BLOCKS[-1], :, len(TOKEN_IDS) % 32 :]
            assert not tail.any(), "past the last token"


@pytest.mark.parametrize("precision", ["f32", "u8"])
def test_what_a_block_held_before_does_not_matter(
    llama_ir: Path, precision: str
) -> None:
    """Not even if it was no number: only slots that were written are read."""
    executor = load(llama_ir, KV_CACHE_PRECISION=precision)
    pool = executor._pool
    assert pool is not None
    clean = logits(executor)
    pool._keys[:] = 255
    pool._values[:] = 255
    assert np.array_equal(logits(executor), clean)


@pytest.mark.parametrize(
    ("precision", "cell_bytes"),
    [("f32", None), ("f16", None), ("u8", 2 * (40 * 16 + 32 * 24))],
)
def test_a_block_is_counted_with_its_scales(
    llama_ir: Path, precision: str, cell_bytes: int | None
) -> None:
    """A u8 cell has eight rows (K) or columns (V) more, for scales and zero points."""
    spec = load(llama_ir, KV_CACHE_PRECISION=precision).kv_spec()
    assert spec.cell_bytes == cell_bytes
    assert (spec.num_layers, spec.num_kv_heads, spec.head_dim) == (3, 2, 16)


@st.composite
def plans(draw: st.DrawFn) -> StepPlan:
    """Any step over distinct blocks of 32 tokens."""
    entries = []
    free = list(range(1, 60))
    for index in range(draw(st.integers(1, 5))):
        computed, new = draw(st.integers(0, 70)), draw(st.integers(1, 70))
        ids = tuple(draw(st.lists(st.integers(0, 99), min_size=new, max_size=new)))
        num_blocks = -(-(computed + new) // 32) + draw(st.integers(0, 1))
        table = tuple(free.pop() for _ in range(num_blocks))
        rows = draw(st.integers(0, new))
        request = GenerateRequest(str(index), ids, SamplingParams())
        entries.append(ScheduledRequest(request, 0, ids, computed, table, rows, 0))
    return StepPlan(0, tuple(entries), len(entries), (), (), ())


@given(plan=plans())
def test_every_token_finds_its_slot_and_its_row(plan: StepPlan) -> None:
    """Read one by one, as the kernel does, the arrays say what the plan says."""
    inputs = make_step_inputs(plan, 32)
    rows = []
    for index, entry in enumerate(plan.scheduled):
        begin, end = inputs.subsequence_begins[index : index + 2]
        first, last = inputs.block_indices_begins[index : index + 2]
        computed = entry.num_computed_tokens
        total = computed + len(entry.token_ids)
        assert inputs.input_ids[begin:end].tolist() == list(entry.token_ids)
        assert inputs.position_ids[begin:end].tolist() == list(range(computed, total))
        assert inputs.past_lens[index] == computed
        num_blocks = -(-total // 32)
        table = inputs.block_indices[first:last].tolist()
        assert table == list(entry.block_ids[:num_blocks])
        assert total <= inputs.max_context_len
        rows += range(end - entry.num_logits_rows, end)
    assert inputs.logits_rows.tolist() == rows
    assert inputs.max_context_len.shape == ()


@st.composite
def traffic(draw: st.DrawFn) -> list[StepPlan]:
    """Steps in a row: sequences decode, get blocks, come, go and change places."""
    plans: list[StepPlan] = []
    entries: list[ScheduledRequest] = []
    for _ in range(draw(st.integers(1, 6))):
        entries = [
            entry._replace(
                token_ids=(draw(st.integers(0, 99)),),
                num_computed_tokens=entry.num_computed_tokens + len(entry.token_ids),
                num_logits_rows=draw(st.sampled_from([1, 1, 1, 0])),
                block_ids=draw(
                    st.sampled_from([entry.block_ids] * 5 + [(*entry.block_ids, 9)])
                ),
            )
            for entry in entries
        ]
        change = draw(st.sampled_from(["none", "none", "new", "gone", "places"]))
        if change == "new" or not entries:
            entries += draw(plans_of_one())
        elif change == "gone" and len(entries) > 1:
            entries.pop(draw(st.integers(0, len(entries) - 1)))
        elif change == "places":
            entries = draw(st.permutations(entries))
        plans.append(StepPlan(0, tuple(entries), 0, (), (), ()))
    return plans


@st.composite
def plans_of_one(draw: st.DrawFn) -> list[ScheduledRequest]:
    """A sequence that has room for some decode steps."""
    new = draw(st.integers(1, 3))
    ids = tuple(range(new))
    request = GenerateRequest("new", ids, SamplingParams())
    table = tuple(range(1, 4))
    return [ScheduledRequest(request, 0, ids, draw(st.integers(0, 50)), table, 1, 1)]


@given(plans=traffic())
def test_arrays_advanced_in_place_are_those_made_anew(plans: list[StepPlan]) -> None:
    """Whatever came before, a step's inputs are its plan's."""
    maker = StepInputMaker(32)
    for plan in plans:
        found, wanted = maker.make(plan).as_dict(), make_step_inputs(plan, 32).as_dict()
        for name, array in wanted.items():
            assert np.array_equal(found[name], array), name
            assert found[name].dtype == array.dtype
