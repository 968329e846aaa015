"""Rotation, cache and attention: steps cut into passes, sequences into steps."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybrid.backends.cpu.abi import Format, OpFlag, OpKind
from tests.backends.kernel_cells import Cells, CellShape
from tests.backends.kernel_plan import Arena, Plan, op
from tests.backends.kernel_stand import VARIANTS, KernelModel
from tests.backends.kernel_step import make_step
from tests.backends.packed_matrix import PackedMatrix, pack

_Array = NDArray[Any]
VOCAB: Final = 50
HEADS: Final = 4
KV_HEADS: Final = 2
HEAD_DIM: Final = 24
QKV: Final = (HEADS + 2 * KV_HEADS) * HEAD_DIM
OUT: Final = HEADS * HEAD_DIM
NUM_BLOCKS: Final = 64
BLOCK_SIZE: Final = 4


def make_weights(seed: int) -> list[PackedMatrix]:
    """Make an embedding of joined q, k and v, and a head."""
    random = np.random.default_rng(seed)
    return [
        pack(Format.F32, VOCAB, QKV, random),
        pack(Format.F32, VOCAB, OUT, random),
    ]


def make_plan(
    weights: list[PackedMatrix], chunk_tokens: int, unit_tokens: int, num_threads: int
) -> Plan:
    """Make a model of one layer without any product but its head."""
    arena = Arena(rows=unit_tokens)
    qkv, out, selected = arena.plain(QKV), arena.plain(OUT), arena.plain(OUT)
    read = arena.activation(Format.F32, OUT)
    on_rows = OpFlag.ROWS
    return Plan(
        ops=[
            op(OpKind.EMBED, None, qkv, weight=0),
            op(OpKind.ROPE_KV, qkv, None),
            op(OpKind.ATTENTION, qkv, out),
            op(OpKind.SELECT_ROWS, out, selected, width=OUT),
            op(OpKind.CONVERT, selected, read, width=OUT, flags=on_rows),
            op(OpKind.LINEAR, read, None, weight=1, flags=on_rows | OpFlag.LOGITS),
        ],
        arena=arena,
        weights=weights,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        windows=(20,),
        vocab_size=VOCAB,
        num_threads=num_threads,
        chunk_tokens=chunk_tokens,
        attention_scale=HEAD_DIM**-0.5,
        inverse_frequencies=10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM),
    )


def make_cells(form: Format) -> Cells:
    """Make an empty cache."""
    shape = CellShape(
        num_kv_heads=KV_HEADS, block_size=BLOCK_SIZE, head_dim=HEAD_DIM, format=form
    )
    return Cells(shape, num_layers=1, num_blocks=NUM_BLOCKS)


class Tokens:
    """Sequences with their tokens and blocks."""

    def __init__(self, lengths: Sequence[int], seed: int) -> None:
        """Draw token ids and deal out blocks."""
        random = np.random.default_rng(seed)
        blocks = iter(random.permutation(NUM_BLOCKS))
        self.ids = [random.integers(0, VOCAB, length) for length in lengths]
        self.blocks = [
            [next(blocks) for _ in range(-(-length // BLOCK_SIZE))]
            for length in lengths
        ]

    def run(self, model: KernelModel, begins: list[int], ends: list[int]) -> _Array:
        """Run the tokens from ``begins`` to ``ends``: logits of all of them."""
        spans = list(zip(begins, ends, strict=True))
        step = make_step(
            [(begin, end - begin) for begin, end in spans],
            block_size=BLOCK_SIZE,
            block_ids=[
                block
                for table, end in zip(self.blocks, ends, strict=True)
                for block in table[: -(-end // BLOCK_SIZE)]
            ],
            input_ids=np.concatenate(
                [i[b:e] for i, (b, e) in zip(self.ids, spans, strict=True)]
            ),
            logits_rows=range(sum(ends) - sum(begins)),
        )
        logits = np.full((step.num_tokens, VOCAB), np.nan, np.float32)
        model.forward(step, logits)
        return logits


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", [Format.F32, Format.BF16, Format.INT8])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_logits_are_the_same_however_work_is_cut(
    variant: str, form: Format, data: st.DataObject
) -> None:
    """Bit for bit: in one pass, in passes that cut sequences, and in two steps."""
    seed = data.draw(st.integers(0, 2**32 - 1))
    lengths = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=4))
    tokens, weights = Tokens(lengths, seed), make_weights(seed)
    starts = [0] * len(lengths)
    total = sum(lengths)
    cells, other_cells = make_cells(form), make_cells(form)
    with KernelModel(
        make_plan(weights, total, total, 1), variant, cells.pool()
    ) as model:
        whole = tokens.run(model, starts, lengths)
    assert np.isfinite(whole).all()

    chunk_tokens = data.draw(st.integers(1, total))
    middles = [data.draw(st.integers(0, length)) for length in lengths]
    unit_tokens, num_threads = (
        data.draw(st.integers(1, 70)),
        data.draw(st.integers(1, 4)),
    )
    plan = make_plan(weights, chunk_tokens, unit_tokens, num_threads)
    with KernelModel(plan, variant, other_cells.pool()) as model:
        assert tokens.run(model, starts, lengths).tobytes() == whole.tobytes()
        first = tokens.run(model, starts, middles)
        second = tokens.run(model, middles, lengths)
    ends = np.cumsum([0, *lengths])
    rows = [range(begin, begin + m) for begin, m in zip(ends, middles, strict=False)]
    early = [row for span in rows for row in span]
    assert first.tobytes() == whole[early].tobytes()
    assert second.tobytes() == np.delete(whole, early, axis=0).tobytes()
