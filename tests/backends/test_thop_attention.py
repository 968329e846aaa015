"""Attention by TensorRT-LLM's operator is dense attention, whatever the form it has."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hybrid.backends.trtllm.decode_graphs import pad_plan
from hybrid.backends.trtllm.machine import Machine
from hybrid.backends.trtllm.scaled_kv_pool import make_pool
from hybrid.backends.trtllm.thop_attention import ThopAttention
from hybrid.bridge import pack_batch
from hybrid.scheduler import ExecutorFailed
from tests.backends.attention_history import AttentionHistory
from tests.backends.mixed_steps import MAX_LEN, MAX_SEQS, largest_error
from tests.backends.mixed_steps import NUM_BLOCKS as STEPS_BLOCKS
from tests.backends.thop_stand import MACHINE, NUM_BLOCKS, make_thop, thop_needs
from tests.backends.trtllm_standin import ERAS, installed

PROMPTS = {"a": 37, "b": 16, "c": 5}


@pytest.fixture(params=ERAS)
def package(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Every form of the operator."""
    with installed(request.param) as module:
        yield module


@pytest.fixture
def standin() -> Iterator[Any]:
    """One form, where they do not differ."""
    with installed("1.2.1") as module:
        yield module


def run_mixed_steps(history: AttentionHistory, attention: ThopAttention) -> None:
    """Chunks with and without computed tokens beside generations, rows that shift."""
    history.run(attention, ("a", 16, True), ("b", 16, True))
    history.run(attention, ("a", 3, True), ("c", 5, True), ("b", 1, False))
    history.run(attention, ("a", 18, True), ("c", 1, False), ("b", 1, False))
    for _ in range(18):
        history.run(attention, ("b", 1, False), ("a", 1, False), ("c", 1, False))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_mixed_steps_are_dense_attention(package: Any, dtype: str) -> None:
    """In every form and dtype, and each K and V lies where the pool's view says."""
    needs = thop_needs(dtype=dtype, kv_dtype=dtype)
    pool = make_pool(needs, NUM_BLOCKS)
    attention = ThopAttention(needs, pool)
    history = AttentionHistory(needs, PROMPTS, NUM_BLOCKS)
    run_mixed_steps(history, attention)
    assert package.bindings.internal.thop.attention.num_calls == 2 * 21
    for name in PROMPTS:
        blocks = pool.by_block[list(history.block_ids(name))]
        for layer in range(2):
            for field, true in enumerate(history.stored(name, layer)):
                cells = blocks[:, layer, field].transpose(0, 1).flatten(1, 2)
                assert torch.equal(cells[:, : true.shape[1]].double(), true)


@pytest.mark.parametrize("seed", range(3))
def test_random_steps_are_naive_attention(package: Any, seed: int) -> None:
    """Also over blocks that others had before."""
    del package
    needs = thop_needs(max_num_seqs=MAX_SEQS, max_model_len=MAX_LEN)
    attention = ThopAttention(needs, make_pool(needs, STEPS_BLOCKS))
    assert largest_error(attention, needs, seed) < 1e-5


def test_an_8_bit_cache_is_dense_attention_over_rounded_numbers(package: Any) -> None:
    """The scale is told in both directions, and saturates instead of becoming NaN."""
    needs = thop_needs(dtype="bfloat16", kv_dtype="float8_e4m3fn", kv_scale=0.005)
    history = AttentionHistory(needs, PROMPTS, NUM_BLOCKS)
    run_mixed_steps(history, make_thop(needs))
    last = package.bindings.internal.thop.attention.last
    assert last["quant_mode"] == 128
    assert float(last["kv_scale_quant_orig"]) == pytest.approx(0.005)


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_any_block_size_gives_the_same(standin: Any, block_size: int) -> None:
    """Of those that the operator can address."""
    del standin
    needs = thop_needs(block_size=block_size)
    run_mixed_steps(AttentionHistory(needs, PROMPTS, NUM_BLOCKS), make_thop(needs))


def test_the_last_block_may_be_begun_only(standin: Any) -> None:
    """A context that is no multiple of the block size is had to its last token."""
    del standin
    needs = thop_needs(max_model_len=37)
    history = AttentionHistory(needs, PROMPTS, NUM_BLOCKS)
    history.run(make_thop(needs), ("a", 37, True))


class _Dispatched(TorchDispatchMode):
    """Notes every operation that reaches a device."""

    def __init__(self) -> None:
        super().__init__()
        self.copied: list[tuple[int, ...]] = []
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run it, too."""
        name = func.overloadpacket.__name__
        self.names.add(name)
        if name == "copy_":
            self.copied.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


def test_a_decode_step_copies_lengths_and_grown_rows_only(standin: Any) -> None:
    """Nothing is allocated: beside copies there are views."""
    del standin
    attention = make_thop(thop_needs())
    history = AttentionHistory(thop_needs(), {"a": 15, "b": 14, "c": 15}, NUM_BLOCKS)
    history.run(attention, ("a", 15, True), ("b", 14, True), ("c", 15, True))
    lengths = [(3,), (3,)]
    row = (1, 2, 6)
    grown: list[list[tuple[int, ...]]] = [[], [row, row], [row], []]
    for rows in grown:
        shares = [(name, 1, False) for name in "abc"]
        plan = history.plan(*shares)
        with _Dispatched() as seen:
            attention.begin_step(plan, pack_batch(plan))
        assert seen.copied == [*rows, *lengths]
        assert seen.names <= {"copy_", "slice", "select", "unbind", "lift_fresh"}
        history.run(attention, *shares)


def test_neighbouring_rows_are_one_copy(standin: Any) -> None:
    """A step in which all tables are new sends them at once."""
    del standin
    attention = make_thop(thop_needs())
    history = AttentionHistory(thop_needs(), dict.fromkeys("abcd", 8), NUM_BLOCKS)
    plan = history.plan(*((name, 8, True) for name in "abcd"))
    with _Dispatched() as seen:
        attention.begin_step(plan, pack_batch(plan))
    assert seen.copied == [(4, 2, 6), (4,), (4,)]


def test_a_capture_sees_the_longest_lengths(package: Any) -> None:
    """On the host alone, and only while it lasts; the answers stay right."""
    operator = package.bindings.internal.thop.attention
    needs = thop_needs()
    attention = make_thop(needs)
    history = AttentionHistory(needs, PROMPTS, NUM_BLOCKS)
    history.run(attention, ("a", 37, True), ("b", 16, True))
    shares = (("a", 1, False), ("b", 1, False))
    plan = history.plan(*shares)
    attention.begin_step(plan, pack_batch(plan))
    qkv, output = torch.zeros(2, 64), torch.zeros(2, 32)
    with attention.captured(2):
        attention.attend(0, qkv, output)
    inside = operator.last
    assert inside["host_past_key_value_lengths"].tolist() == [96, 96]
    assert inside["host_context_lengths"].tolist() == [96, 96]
    assert inside["host_total_kv_lens"].tolist() == [0, 192]
    assert inside["sequence_length"].tolist() == [38, 17]
    attention.attend(0, qkv, output)
    outside = operator.last
    assert outside["host_past_key_value_lengths"].tolist() == [38, 17]
    assert outside["host_context_lengths"].tolist() == [37, 16]
    assert outside["host_total_kv_lens"].tolist() == [0, 55]
    history.run(attention, *shares)


def test_a_padded_step_computes_the_same_while_it_is_captured(standin: Any) -> None:
    """Kernels follow the device's lengths; sequences on the null block harm nobody."""
    del standin
    needs = thop_needs()
    attention = make_thop(needs)
    history = AttentionHistory(needs, PROMPTS, NUM_BLOCKS)
    history.run(attention, ("a", 37, True), ("b", 16, True), ("c", 5, True))
    plan = history.plan(*((name, 1, False) for name in PROMPTS))
    rows = torch.randn(5, 64)
    eager, recorded = torch.empty(3, 32), torch.empty(5, 32)
    attention.begin_step(plan, pack_batch(plan))
    attention.attend(1, rows[:3], eager)
    padded = pad_plan(plan, 5)
    attention.begin_step(padded, pack_batch(padded))
    with attention.captured(5):
        attention.attend(1, rows, recorded)
    assert torch.equal(recorded[:3], eager)


def test_a_pool_that_moved_is_noticed(standin: Any) -> None:
    """Before a kernel follows the old pointer."""
    del standin
    pool = make_pool(thop_needs(), NUM_BLOCKS)
    attention = ThopAttention(thop_needs(), pool)
    history = AttentionHistory(thop_needs(), PROMPTS, NUM_BLOCKS)
    history.run(attention, ("c", 5, True))
    pool.memory.set_(torch.zeros_like(pool.memory))
    with pytest.raises(ExecutorFailed, match="KV pool: its memory was"):
        history.run(attention, ("c", 1, False))


def test_a_workspace_that_grew_voids_what_was_captured(standin: Any) -> None:
    """A graph keeps the old address; it is told of nothing else."""
    attention = make_thop(thop_needs())
    history = AttentionHistory(thop_needs(), PROMPTS, NUM_BLOCKS)
    before = attention.capture_key
    history.run(attention, ("c", 5, True))
    history.run(attention, ("c", 1, False))
    assert attention.capture_key == before
    # The operator's way, inside of a call.
    workspace = standin.bindings.internal.thop.attention.last["workspace_"]
    workspace.resize_(2 * len(workspace))
    assert attention.capture_key != before
    history.run(attention, ("c", 1, False))


GPU = {"devices": ("cuda", "cpu"), "kernel_device": "cuda"}
ON_GPU = {
    "device": "cuda",
    "dtype": "bfloat16",
    "kv_dtype": "bfloat16",
    "head_dim": 64,
}
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"device": "cuda"}, {}, "kernels run on cpu, the model is on cuda"),
    ({}, {"compute_capability": None}, "need a cpu device"),
    ({}, {"kernel_device": "cuda"}, "need a cuda device"),
    ({"block_size": 8}, {}, "block_size is 8"),
    ({"block_size": 24}, {}, "block_size is 24"),
    ({"kv_dtype": "int8"}, {}, "kv_dtype is int8; it takes float32 and float8_e4m3fn"),
    ({"kv_dtype": "float16"}, {}, "kv_dtype is float16"),
    ({"windows": (None, 95)}, {}, "window of 95 tokens is shorter than max_model_len"),
    ({**ON_GPU, "dtype": "float32", "kv_dtype": "float32"}, GPU, "dtype is float32"),
    ({**ON_GPU, "head_dim": 24}, GPU, "head_dim is 24; on compute capability 9.0 it"),
    (
        {**ON_GPU, "head_dim": 96},
        {**GPU, "compute_capability": (10, 0)},
        "head_dim is 96; on compute capability 10.0 it takes 64, 128, 256",
    ),
    (ON_GPU, {**GPU, "compute_capability": (10, 3)}, "it takes 128, 256"),
    (
        {**ON_GPU, "kv_dtype": "float8_e4m3fn"},
        {**GPU, "compute_capability": (8, 6)},
        "needs compute capability 8.9; this GPU has 8.6",
    ),
]


def machine_with(**changes: Any) -> Machine:
    """The machine of these tests, but for something."""
    there = {
        "devices": MACHINE.devices,
        "compute_capability": MACHINE.compute_capability,
        "kernel_device": MACHINE.kernel_device,
    }
    return Machine(**{**there, **changes})


@pytest.mark.parametrize(("needs", "machine", "message"), REFUSED)
def test_what_it_cannot_serve_is_refused_with_the_reason(
    standin: Any, needs: dict[str, Any], machine: dict[str, Any], message: str
) -> None:
    """Before a weight is loaded, in words that name the value."""
    del standin
    reason = ThopAttention.refusal(machine_with(**machine), thop_needs(**needs))
    assert reason is not None
    assert message in reason


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_what_it_can_serve_is_not_refused(
    package: Any, capability: tuple[int, int]
) -> None:
    """With a model in mind and without; a window that is never reached is none."""
    del package
    machine = machine_with(**GPU, compute_capability=capability)
    assert ThopAttention.refusal(machine, None) is None
    needs = thop_needs(**ON_GPU, windows=(None, 96))
    assert ThopAttention.refusal(machine, needs) is None
    if capability > (8, 0):
        cache = thop_needs(**{**ON_GPU, "kv_dtype": "float8_e4m3fn"})
        assert ThopAttention.refusal(machine, cache) is None


def test_without_the_package_it_says_so() -> None:
    """The first question, since nothing else needs an import either."""
    reason = ThopAttention.refusal(MACHINE, None)
    assert reason == "the package tensorrt_llm is not installed"
