"""Configs and steps that point out of range are refused, and nothing is run."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hybrid.backends.cpu.abi import Format, OpFlag, OpKind
from hybrid.scheduler.errors import ExecutorFailed
from tests.backends.kernel_plan import Arena, Plan, op
from tests.backends.kernel_stand import VARIANTS, KernelModel
from tests.backends.kernel_step import StepArrays, make_step
from tests.backends.packed_matrix import pack

pytestmark = pytest.mark.skipif(not VARIANTS, reason="the CPU kernels are not built")
WIDTH = 24


def small_plan() -> Plan:
    """Make an embedding, a norm, rotation, attention and logits."""
    arena = Arena(rows=8)
    qkv, out, selected = arena.plain(WIDTH), arena.plain(8), arena.plain(8)
    read = arena.activation(Format.F32, 8)
    random = np.random.default_rng(0)
    flags = OpFlag.ROWS | OpFlag.LOGITS
    return Plan(
        ops=[
            op(OpKind.EMBED, None, qkv, weight=0),
            op(OpKind.ROPE_KV, qkv, None),
            op(OpKind.ATTENTION, qkv, out),
            op(OpKind.SELECT_ROWS, out, selected, width=8),
            op(
                OpKind.NORM,
                selected,
                read,
                width=8,
                norm=0,
                format=Format.F32,
                flags=OpFlag.ROWS,
            ),
            op(OpKind.LINEAR, read, None, weight=1, flags=flags),
        ],
        arena=arena,
        weights=[pack(Format.F32, 64, WIDTH, random), pack(Format.F32, 64, 8, random)],
        vectors=[np.ones(8)],
    )


def test_the_small_plan_runs() -> None:
    """What the refusals below change is fine as it is."""
    logits = np.full((1, 64), np.nan, np.float32)
    with KernelModel(small_plan(), VARIANTS[-1]) as model:
        model.forward(make_step([(0, 3), (20, 1)], logits_rows=[3]), logits)
    assert np.isfinite(logits).all()
    assert logits.any()


@pytest.mark.parametrize("index", range(3))
def test_an_op_on_tokens_is_none_on_selected_rows(index: int) -> None:
    """Nobody says where a selected row's token lies in its sequence."""
    plan = small_plan()
    plan.ops[index].flags |= OpFlag.ROWS
    with pytest.raises(ExecutorFailed, match="BAD_CONFIG"):
        KernelModel(plan, VARIANTS[-1])


@pytest.mark.parametrize("index", range(6))
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("in", -64),
        ("in", 1 << 40),
        ("in", 32),
        ("out", -64),
        ("out", 1 << 40),
        ("out", 32),
        ("kind", -1),
        ("kind", 99),
        ("layer", -1),
        ("layer", 1),
        ("weight", -1),
        ("weight", 2),
        ("norm", 1),
        ("norm", -7),
        ("norm2", 1),
        ("norm2", -7),
        ("format", 4),
        ("format", -1),
        ("width", 0),
        ("width", -8),
        ("width", 2**31 - 1),
    ],
)
def test_an_op_out_of_range_is_refused_or_reads_no_such_field(
    index: int, field: str, value: int
) -> None:
    """Whoever reads the field refuses it; the others run as before."""
    plan = small_plan()
    setattr(plan.ops[index], field, value)
    logits = np.zeros((1, 64), np.float32)
    try:
        model = KernelModel(plan, VARIANTS[-1])
    except ExecutorFailed:
        return
    with model:
        model.forward(make_step([(0, 3)], logits_rows=[2]), logits)
    wanted = np.zeros((1, 64), np.float32)
    with KernelModel(small_plan(), VARIANTS[-1]) as model:
        model.forward(make_step([(0, 3)], logits_rows=[2]), wanted)
    assert logits.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    "change",
    [
        {"num_threads": 0},
        {"num_kv_heads": 0},
        {"num_heads": 0},
        {"num_heads": 3, "num_kv_heads": 2},
        {"head_dim": 7},
        {"vocab_size": 0},
        {"vocab_size": 65},
        {"windows": ()},
        {"windows": (-1,)},
        {"num_threads": 1 << 13},
        {"chunk_tokens": 1 << 21},
        {"num_heads": 1 << 13, "num_kv_heads": 1 << 13},
    ],
)
def test_a_config_that_contradicts_itself_is_refused(change: dict[str, int]) -> None:
    """Before any thread or memory is taken."""
    with pytest.raises(ExecutorFailed, match="BAD_CONFIG"):
        KernelModel(replace(small_plan(), **change), VARIANTS[-1])


def _set(name: str, index: int, value: int) -> Callable[[StepArrays], None]:
    def change(step: StepArrays) -> None:
        getattr(step, name)[index] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("input_ids", 2, 64),
        _set("input_ids", 0, -1),
        _set("input_ids", 0, 1 << 40),
        _set("positions", 1, 7),
        _set("positions", 3, -1),
        _set("positions", 3, 1 << 40),
        _set("positions", 3, 48),
        _set("query_start", 0, 1),
        _set("query_start", 1, 5),
        _set("query_start", 1, -1),
        _set("query_start", 2, 3),
        _set("table_start", 1, -1),
        _set("table_start", 2, 2),
        _set("block_ids", 0, 64),
        _set("block_ids", 2, -1),
        _set("logits_rows", 0, -1),
        _set("logits_rows", 1, 4),
        _set("logits_rows", 0, 3),
    ],
)
def test_a_step_out_of_range_is_refused_and_the_next_one_runs(
    change: Callable[[StepArrays], None],
) -> None:
    """Nothing is written, neither to the arena nor to the logits."""
    step = make_step([(0, 3), (20, 1)], logits_rows=[2, 3])
    change(step)
    logits = np.full((2, 64), 7.0, np.float32)
    with KernelModel(small_plan(), VARIANTS[-1]) as model:
        with pytest.raises(ExecutorFailed, match="BAD_STEP"):
            model.forward(step, logits)
        assert (logits == 7.0).all()
        model.forward(make_step([(0, 3), (20, 1)], logits_rows=[2, 3]), logits)
    assert np.isfinite(logits).all()
    assert not (logits == 7.0).any()


def test_rows_of_which_nothing_is_asked_are_refused() -> None:
    """Neither logits nor likeliest ids; without rows there is nothing to ask."""
    some, none = make_step([(0, 3)], logits_rows=[2]), make_step([(0, 3)])
    with KernelModel(small_plan(), VARIANTS[-1]) as model:
        with pytest.raises(ExecutorFailed, match="BAD_STEP"):
            model.forward(some)
        model.forward(some, likeliest=np.zeros(1, np.int64))
        model.forward(none)
