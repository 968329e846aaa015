"""Attention over the paged cache, against float64."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybrid.backends.cpu.abi import Format, OpKind
from tests.backends.kernel_cells import Cells, CellShape
from tests.backends.kernel_plan import Arena, Plan, op
from tests.backends.kernel_stand import VARIANTS, KernelModel
from tests.backends.kernel_step import StepArrays, make_step
from tests.backends.packed_matrix import from_bf16, to_bf16

_Array = NDArray[Any]
FORMATS = [Format.F32, Format.BF16, Format.INT8]
LAYER = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Some sequences' queries over a cache, which lies in shuffled blocks."""

    format: Format
    sequences: Sequence[tuple[int, int]]
    """Of each: tokens before, and in this step."""
    num_kv_heads: int = 2
    group: int = 3
    head_dim: int = 24
    block_size: int = 16
    window: int = 0
    broken: str = ""
    """What of the second sequence holds no numbers: ``queries`` or ``cells``."""
    seed: int = 0

    def make(self) -> tuple[StepArrays, Cells, _Array]:
        """Make step, cells and queries ``[tokens, heads, head_dim]``.

        What no sequence's tokens fill holds no numbers.
        """
        random = np.random.default_rng(self.seed)
        num_blocks = 2 + sum(
            -(-sum(lengths) // self.block_size) for lengths in self.sequences
        )
        step = make_step(
            self.sequences,
            block_size=self.block_size,
            block_ids=random.permutation(num_blocks),
        )
        shape = CellShape(
            num_kv_heads=self.num_kv_heads,
            block_size=self.block_size,
            head_dim=self.head_dim,
            format=self.format,
        )
        cells = Cells(shape, num_layers=LAYER + 1, num_blocks=num_blocks)
        spoilt = np.ones_like(cells.untouched())
        for seq, (computed, new) in enumerate(self.sequences):
            tokens = np.arange(computed + new)
            blocks = step.block_ids[step.table_start[seq] :][tokens // self.block_size]
            spoilt[LAYER, :, blocks, :, tokens % self.block_size] = False
        whole = (LAYER + 1, 2, num_blocks, self.num_kv_heads)
        cells.write(random.normal(size=(*whole, self.block_size, self.head_dim)))
        if self.broken == "cells":
            spoilt[LAYER, :, step.block_ids[step.table_start[1]], 0, 5] = True
        cells.spoil(spoilt)
        # Those of the tokens before are drawn, too: a token's own do not depend on how
        # its sequence is cut into steps.
        shape_of_one = (self.num_kv_heads * self.group, self.head_dim)
        queries = [
            random.normal(size=(computed + new, *shape_of_one))[computed:] * 2
            for computed, new in self.sequences
        ]
        if self.broken == "queries":
            queries[1][0, 0, 3] = np.nan
        return step, cells, np.concatenate(queries).astype(np.float32)

    def run(self, variant: str, num_threads: int = 1) -> _Array:
        """Run one ATTENTION: float32 ``[tokens, heads, head_dim]``."""
        step, cells, queries = self.make()
        heads = self.num_kv_heads * self.group
        arena = Arena(rows=step.num_tokens)
        source = arena.plain((heads + 2 * self.num_kv_heads) * self.head_dim)
        target = arena.plain(heads * self.head_dim)
        plan = Plan(
            ops=[op(OpKind.ATTENTION, source, target, layer=LAYER)],
            arena=arena,
            num_heads=heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            windows=(1, self.window),
            attention_scale=self.head_dim**-0.5,
            num_threads=num_threads,
        )
        with KernelModel(plan, variant, cells.pool()) as model:
            model.put(source, queries)
            model.forward(step)
            got = model.get(target, np.float32, len(queries))
        return got.reshape(queries.shape)

    def wanted(self) -> _Array:
        """Compute it in float64, sequence by sequence."""
        step, cells, queries = self.make()
        history = cells.read()[LAYER]
        out = []
        for seq, (computed, new) in enumerate(self.sequences):
            tokens = np.arange(computed + new)
            blocks = step.block_ids[step.table_start[seq] :][tokens // self.block_size]
            kv = history[
                :, blocks, :, tokens % self.block_size
            ]  # [tokens, 2, heads, D]
            keys, values = kv.repeat(self.group, axis=2).transpose(1, 2, 0, 3)
            rows = self._scaled(queries[step.query_start[seq] :][:new])
            scores = rows.transpose(1, 0, 2) @ keys.transpose(0, 2, 1)
            distance = tokens[computed:, None] - tokens
            seen = distance >= 0
            if self.window:
                seen &= distance < self.window
            scores = np.where(seen, scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            out.append((weights @ values).transpose(1, 0, 2))
        return np.concatenate(out)

    def _scaled(self, queries: _Array) -> _Array:
        """Scale queries in float32, and round them as they meet keys: 16 bits."""
        scaled = queries * np.float32(self.head_dim**-0.5)
        if self.format == Format.BF16:
            scaled = from_bf16(to_bf16(scaled))
        if self.format == Format.INT8:
            most = np.abs(scaled).max(axis=-1, keepdims=True)
            whole = np.rint(scaled * (np.float32(32384) / most)).astype(np.float64)
            return whole * (most / np.float32(32384))
        return scaled.astype(np.float64)

    def check(self, variant: str, num_threads: int = 1) -> None:
        """Compare the two."""
        error = np.abs(self.run(variant, num_threads) - self.wanted())
        # Beside INT8 cells the weights of V have 16 bits.
        assert error.max() < (4e-4 if self.format == Format.INT8 else 3e-5)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_attention_of_any_shape(
    variant: str, form: Format, data: st.DataObject
) -> None:
    """Groups of heads, widths, windows, blocks; chunks and single tokens mixed."""
    lengths = st.tuples(st.integers(0, 90), st.one_of(st.just(1), st.integers(1, 40)))
    case = Case(
        format=form,
        sequences=data.draw(st.lists(lengths, min_size=1, max_size=6)),
        num_kv_heads=data.draw(st.integers(1, 3)),
        group=data.draw(st.integers(1, 8)),
        head_dim=2 * data.draw(st.integers(1, 64)),
        block_size=data.draw(st.sampled_from([1, 4, 6, 8, 16, 20, 23, 32, 64])),
        window=data.draw(st.sampled_from([0, 0, 1, 5, 33, 64])),
        seed=data.draw(st.integers(0, 2**32 - 1)),
    )
    case.check(variant, num_threads=data.draw(st.sampled_from([1, 2, 3])))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("block_size", [1, 3, 8, 20, 23, 48])
@pytest.mark.parametrize("head_dim", [2, 20, 64, 80])
def test_attention_over_blocks_that_cut_groups(
    variant: str, block_size: int, head_dim: int
) -> None:
    """INT8 keeps K by 16 tokens and V by 4, where a block has so many."""
    case = Case(
        format=Format.INT8,
        sequences=[(75, 1), (0, 33), (16, 2)],
        head_dim=head_dim,
        block_size=block_size,
    )
    case.check(variant)


LONG = [
    [(1500, 1)],
    [(511, 1), (512, 1), (513, 1), (1023, 2)],
    [(600, 5), (0, 40), (2047, 1)],
    [(480, 70), (1000, 50), (30, 1)],
]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("sequences", LONG)
@pytest.mark.parametrize("window", [0, 700])
def test_attention_over_long_contexts(
    variant: str, form: Format, sequences: list[tuple[int, int]], window: int
) -> None:
    """Contexts that are split into parts and put together again."""
    case = Case(format=form, sequences=sequences, window=window)
    for num_threads in (1, 3):
        case.check(variant, num_threads)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", FORMATS)
def test_attention_is_the_same_by_any_number_of_threads(
    variant: str, form: Format
) -> None:
    """Bit for bit, split or not."""
    case = Case(format=form, sequences=[(1200, 1), (70, 40), (0, 9), (600, 1)])
    first = case.run(variant).tobytes()
    for num_threads in (2, 3, 7):
        assert case.run(variant, num_threads).tobytes() == first


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("window", [0, 100])
def test_a_token_is_the_same_by_chunks_of_any_size(
    variant: str, form: Format, window: int
) -> None:
    """Bit for bit: the last tokens of 600, as the end of a long chunk or one by one."""
    whole = Case(format=form, sequences=[(0, 600)], window=window)
    rows = whole.run(variant)
    for computed in (599, 570, 511, 47):
        part = replace(whole, sequences=[(computed, 600 - computed)])
        assert part.run(variant, num_threads=3).tobytes() == rows[computed:].tobytes()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_broken_sequence_leaves_the_others_alone(
    variant: str, form: Format, num_threads: int
) -> None:
    """No numbers in one's queries or cache: the others keep their bits."""
    case = Case(format=form, sequences=[(40, 3), (700, 1), (33, 5)])
    whole = case.run(variant, num_threads)
    for broken in ("queries", "cells"):
        hurt = replace(case, broken=broken).run(variant, num_threads)
        assert hurt[[0, 1, 2, 4, 5, 6, 7, 8]].tobytes() == (
            whole[[0, 1, 2, 4, 5, 6, 7, 8]].tobytes()
        )
        assert np.isnan(hurt[3]).any()
