"""The kernels name the likeliest id of each row, whether they write it out or not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybrid.backends.cpu.abi import Format, OpFlag, OpKind
from tests.backends.guarded_memory import guarded
from tests.backends.kernel_plan import Arena, Plan, op
from tests.backends.kernel_stand import VARIANTS, KernelModel
from tests.backends.kernel_step import make_step
from tests.backends.packed_matrix import PackedMatrix, pack

_Array = NDArray[Any]
WIDTH = 8


def run(
    variant: str,
    head: PackedMatrix,
    x: _Array,
    *,
    num_threads: int = 1,
    unit_tokens: int | None = None,
    chunk_tokens: int = 0,
) -> tuple[_Array, list[int]]:
    """Multiply rows by a head: its logits, and what the kernels name of them.

    They name the same where nobody asks for logits.
    """
    num_rows = len(x)
    arena = Arena(rows=unit_tokens or num_rows)
    hidden, selected = arena.plain(WIDTH), arena.plain(WIDTH)
    read = arena.activation(Format.F32, WIDTH)
    on_rows = OpFlag.ROWS
    plan = Plan(
        ops=[
            op(OpKind.EMBED, None, hidden, weight=0),
            op(OpKind.SELECT_ROWS, hidden, selected, width=WIDTH),
            op(OpKind.CONVERT, selected, read, width=WIDTH, flags=on_rows),
            op(OpKind.LINEAR, read, None, weight=1, flags=on_rows | OpFlag.LOGITS),
        ],
        arena=arena,
        weights=[_rows_as_embedding(x, head.rows), head],
        vocab_size=head.rows,
        num_threads=num_threads,
        chunk_tokens=chunk_tokens,
    )
    logits = guarded(np.zeros((num_rows, head.rows), np.float32))
    likeliest, alone = (guarded(np.full(num_rows, 7, np.int64)) for _ in range(2))
    ids = np.arange(num_rows) % head.rows
    with KernelModel(plan, variant) as model:
        step = make_step(
            [(0, num_rows)], input_ids=ids.tolist(), logits_rows=range(num_rows)
        )
        model.forward(step, logits, likeliest)
        model.forward(step, likeliest=alone)
    assert alone.tolist() == likeliest.tolist()
    return logits, likeliest.tolist()


def _rows_as_embedding(x: _Array, num_ids: int) -> PackedMatrix:
    """Token i is row i; the model has at least as many ids as the head."""
    packed = pack(Format.F32, max(num_ids, len(x)), WIDTH, np.random.default_rng(0))
    numbers = packed.data.view(np.float32).reshape(-1, 32, 16)
    blocks = np.zeros((len(numbers), 16, 32), np.float32)
    blocks.reshape(-1, 32)[: len(x), :WIDTH] = x
    numbers[...] = blocks.transpose(0, 2, 1)
    return replace(packed, bias=None)


def with_bias(num_ids: int, bias: _Array) -> PackedMatrix:
    """A head whose logits are ``bias`` where a row is zero."""
    head = pack(Format.F32, num_ids, WIDTH, np.random.default_rng(1))
    return replace(head, bias=guarded(bias.astype(np.float32)))


def expected(row: _Array) -> int:
    """What numpy says; -1 of rows from which nothing can be drawn."""
    best = int(row.argmax())
    return best if np.isfinite(row[best]) else -1


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_likeliest_are_the_same_by_threads_units_and_passes(
    variant: str, data: st.DataObject
) -> None:
    """Where the logits are highest; equal ones go to the lowest id."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    num_rows = data.draw(st.integers(1, 40))
    num_ids = data.draw(st.integers(num_rows, 1500))
    head = pack(Format.F32, num_ids, WIDTH, random)
    # Few different values, so that most rows have their highest more than once.
    bias = random.integers(0, data.draw(st.sampled_from([2, 50])), num_ids)
    head = replace(head, bias=guarded(bias.astype(np.float32)))
    x = random.integers(0, 2, (num_rows, WIDTH)).astype(np.float32)
    x[random.random(num_rows) < 0.5] = 0
    logits, likeliest = run(
        variant,
        head,
        x,
        num_threads=data.draw(st.integers(1, 3)),
        unit_tokens=data.draw(st.integers(1, num_rows)),
        chunk_tokens=data.draw(st.integers(1, num_rows)),
    )
    assert np.abs(logits - (x @ head.dense().T + bias)).max() < 1e-4
    assert likeliest == [expected(row) for row in logits]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("num_ids", [1, 15, 16, 33, 257, 1000])
@pytest.mark.parametrize("worst", [np.nan, np.inf, -np.nan])
def test_a_row_that_nobody_can_draw_from_has_none(
    variant: str, num_ids: int, worst: float
) -> None:
    """One number is enough, wherever it stands."""
    zero = np.zeros((1, WIDTH), np.float32)
    for place in {0, num_ids // 2, num_ids - 1}:
        bias = np.linspace(-1, 1, num_ids)
        bias[place] = worst
        logits, likeliest = run(variant, with_bias(num_ids, bias), zero)
        assert not np.isfinite(logits[0, place])
        assert likeliest == [-1]


@pytest.mark.parametrize("variant", VARIANTS)
def test_ids_that_are_ruled_out_are_not_in_the_way(variant: str) -> None:
    """The highest is found among logits of minus infinity; of such alone, none is."""
    zero = np.zeros((1, WIDTH), np.float32)
    bias = np.full(600, -np.inf)
    assert run(variant, with_bias(600, bias), zero)[1] == [-1]
    for place in (0, 299, 599):
        bias[:] = -np.inf
        bias[place] = -3e38
        assert run(variant, with_bias(600, bias), zero)[1] == [place]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("num_rows", [1, 7, 40, 700])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_wide_head_is_looked_through_piece_by_piece(
    variant: str, num_rows: int, num_threads: int
) -> None:
    """Equal ones lie in many pieces; the last is not whole."""
    random = np.random.default_rng(num_rows)
    num_ids = 20_011
    head = with_bias(num_ids, random.integers(0, 2, num_ids))
    x = random.integers(0, 2, (num_rows, WIDTH)).astype(np.float32)
    x[::3] = 0
    logits, likeliest = run(variant, head, x, num_threads=num_threads)
    assert likeliest == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_number_in_one_piece_is_not_forgotten_in_the_next(variant: str) -> None:
    """Nor is one that comes after the highest."""
    zero = np.zeros((40, WIDTH), np.float32)
    for place in (0, 4_999, 10_000, 19_999):
        bias = np.linspace(-1, 1, 20_000)
        bias[place] = np.nan
        assert run(variant, with_bias(20_000, bias), zero)[1] == [-1] * 40
