"""Small models: embeddings, selected rows, logits, and steps of several passes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybrid.backends.cpu.abi import Format, OpFlag, OpKind
from tests.backends.kernel_plan import Arena, Plan, op
from tests.backends.kernel_stand import VARIANTS, KernelModel
from tests.backends.kernel_step import make_step
from tests.backends.packed_matrix import PackedMatrix, pack

_Array = NDArray[Any]
VOCAB = 50
WIDTH = 40


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", Format)
@settings(max_examples=15, deadline=None)
@given(
    vocab=st.integers(1, 70),
    width=st.integers(1, 130),
    seed=st.integers(0, 2**32 - 1),
)
def test_embeddings_are_rows_of_the_packed_weight(
    variant: str, kind: Format, vocab: int, width: int, seed: int
) -> None:
    """Of any format; the first and the last id are among those looked up."""
    random = np.random.default_rng(seed)
    matrix = pack(kind, vocab, width, random)
    ids = [0, vocab - 1, *random.integers(0, vocab, 7)]
    arena = Arena(rows=len(ids))
    target = arena.plain(width)
    plan = Plan(
        ops=[op(OpKind.EMBED, None, target, weight=0)],
        weights=[matrix],
        arena=arena,
        vocab_size=vocab,
    )
    with KernelModel(plan, variant) as model:
        model.forward(make_step([(0, len(ids))], input_ids=ids))
        got = model.get(target, np.float32, len(ids))
    wanted = matrix.dense()[ids]
    assert np.abs(got - wanted).max() <= 1e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_selected_rows_give_what_they_give_among_all(
    variant: str, num_threads: int
) -> None:
    """Bit for bit, in their order; none at all is fine."""
    arena = Arena(rows=9)
    source, selected = arena.plain(WIDTH), arena.plain(WIDTH)
    read = arena.activation(Format.F32, WIDTH)
    head = pack(Format.F32, VOCAB, WIDTH, np.random.default_rng(2))
    on_rows = OpFlag.ROWS
    plan = Plan(
        ops=[
            op(OpKind.SELECT_ROWS, source, selected, width=WIDTH),
            op(OpKind.CONVERT, selected, read, width=WIDTH, flags=on_rows),
            op(OpKind.LINEAR, read, None, weight=0, flags=on_rows | OpFlag.LOGITS),
        ],
        arena=arena,
        weights=[head],
        vocab_size=VOCAB,
        num_threads=num_threads,
    )
    x = np.random.default_rng(1).normal(size=(9, WIDTH)).astype(np.float32)
    wanted = np.zeros((9, VOCAB), np.float32)
    with KernelModel(plan, variant) as model:
        for rows in (list(range(9)), [], [0], [8], [0, 3, 4, 8]):
            logits = np.full((len(rows), VOCAB), np.nan, np.float32)
            model.put(source, x)
            model.forward(make_step([(0, 9)], logits_rows=rows), logits)
            if len(rows) == len(x):
                wanted = logits
            assert logits.tobytes() == wanted[rows].tobytes()
    assert np.abs(wanted - x @ head.dense().T).max() < 1e-4


class Cut(NamedTuple):
    """How a step is cut."""

    chunk_tokens: int
    unit_tokens: int
    num_threads: int


def run_small_model(
    variant: str,
    weights: Sequence[PackedMatrix],
    ids: Sequence[int],
    rows: Sequence[int],
    cut: Cut,
) -> _Array:
    """Embed, multiply, select, norm, multiply: float32 ``[rows, vocab]``."""
    arena = Arena(rows=cut.unit_tokens)
    hidden, selected = arena.plain(WIDTH), arena.plain(WIDTH)
    exact, rounded = (arena.activation(f, WIDTH) for f in (Format.F32, Format.INT8))
    on_rows, logits_flags = OpFlag.ROWS, OpFlag.ROWS | OpFlag.LOGITS
    add = OpFlag.ACCUMULATE
    plan = Plan(
        ops=[
            op(OpKind.EMBED, None, hidden, weight=0),
            op(OpKind.CONVERT, hidden, exact, width=WIDTH, format=Format.F32),
            op(OpKind.LINEAR, exact, hidden, weight=1, flags=add),
            op(OpKind.SELECT_ROWS, hidden, selected, width=WIDTH),
            op(
                OpKind.NORM,
                selected,
                rounded,
                width=WIDTH,
                format=Format.INT8,
                norm=0,
                flags=on_rows,
            ),
            op(OpKind.LINEAR, rounded, None, weight=2, flags=logits_flags),
        ],
        arena=arena,
        weights=weights,
        vectors=[np.ones(WIDTH)],
        vocab_size=VOCAB,
        num_threads=cut.num_threads,
        chunk_tokens=cut.chunk_tokens,
    )
    logits = np.full((len(rows), VOCAB), np.nan, np.float32)
    with KernelModel(plan, variant) as model:
        step = make_step([(0, len(ids))], input_ids=ids, logits_rows=rows)
        model.forward(step, logits)
    return logits


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_logits_are_the_same_by_passes_of_any_size(
    variant: str, data: st.DataObject
) -> None:
    """Bit for bit, and near float64; only the rows asked for are written.

    Passes of many tokens take each unit's rows through all ops at once.
    """
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    weights = [
        pack(Format.BF16, VOCAB, WIDTH, random),
        pack(Format.F32, WIDTH, WIDTH, random),
        pack(Format.INT8, VOCAB, WIDTH, random),
    ]
    ids = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=150))
    rows = data.draw(st.sets(st.integers(0, len(ids) - 1)).map(sorted))
    total = len(ids)
    whole = run_small_model(variant, weights, ids, rows, Cut(total, total, 1))
    bounds = ((1, total), (1, 70), (1, 4))
    cut = Cut(*(data.draw(st.integers(*bound)) for bound in bounds))
    parts = run_small_model(variant, weights, ids, rows, cut)
    assert parts.tobytes() == whole.tobytes()

    embedding, body, head = (matrix.dense() for matrix in weights)
    hidden = embedding[ids] + embedding[ids] @ body.T
    hidden /= np.sqrt((hidden * hidden).mean(axis=1, keepdims=True) + 1e-5)
    wanted = (hidden @ head.T)[rows]
    # Each of 40 numbers is off by half a step of 127, the signs at random.
    bound = 5 * 0.5 / 127 * np.abs(hidden).max() * np.linalg.norm(head, axis=1)
    assert (np.abs(whole - wanted) <= bound).all()
