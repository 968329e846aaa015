"""Products of activations and packed weights, against float64."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybrid.backends.cpu.abi import Format, OpFlag, OpKind
from tests.backends.activation_rows import (
    eight_bit_groups,
    four_bit_pairs,
    make_rows,
    put_int8,
    read_rows,
    rounded_sums,
)
from tests.backends.guarded_memory import guarded
from tests.backends.kernel_plan import Arena, Plan, op
from tests.backends.kernel_stand import VARIANTS, KernelModel
from tests.backends.kernel_step import make_step
from tests.backends.packed_matrix import PackedMatrix, pack
from tests.backends.row_ops import RowOp

_Array = NDArray[Any]
MANY_ROWS = 32
"""From here on INT4 weights may be multiplied by their copies in eight bits."""
TOLERANCES = {
    Format.F32: 1e-5,
    Format.BF16: 1e-5,  # products of two bfloat16 are exact in float32
    Format.INT8: 1e-6,
    Format.INT4: 1e-5,
}
"""By format: largest error in parts of the sum of the magnitudes of what was added."""


def multiply(
    variant: str,
    matrix: PackedMatrix,
    raw: _Array,
    prior: _Array | None = None,
    num_threads: int = 1,
    batch_invariant: bool = True,
) -> _Array:
    """Run one LINEAR: float32 ``[M, N]``."""
    arena = Arena(rows=len(raw))
    source = arena.activation(matrix.format, matrix.columns)
    target = arena.plain(matrix.rows)
    flags = OpFlag.NONE if prior is None else OpFlag.ACCUMULATE
    plan = Plan(
        ops=[op(OpKind.LINEAR, source, target, weight=0, flags=flags)],
        weights=[matrix],
        arena=arena,
        num_threads=num_threads,
        batch_invariant=batch_invariant,
    )
    with KernelModel(plan, variant) as model:
        model.put(source, raw)
        if prior is not None:
            model.put(target, prior)
        model.forward(make_step([(0, len(raw))]))
        return model.get(target, np.float32, len(raw))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", Format)
@settings(max_examples=25, deadline=None)
@given(
    m=st.integers(1, 70),
    n=st.integers(1, 130),
    k=st.integers(1, 200),
    has_bias=st.booleans(),
    accumulates=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_linear_is_the_product(  # noqa: PLR0917 - Hypothesis gives them by name
    variant: str,
    kind: Format,
    m: int,
    n: int,
    k: int,
    has_bias: bool,
    accumulates: bool,
    seed: int,
) -> None:
    """Any shape, with and without bias, added to what is there or not."""
    random = np.random.default_rng(seed)
    matrix = pack(kind, n, k, random)
    if has_bias:
        matrix = replace(matrix, bias=guarded(random.normal(size=n).astype(np.float32)))
    raw = make_rows(kind, m, k, random)
    prior = random.normal(size=(m, n)).astype(np.float32) if accumulates else None
    got = multiply(variant, matrix, raw, prior)

    x, w = read_rows(kind, raw, k), matrix.dense()
    wanted, magnitude = x @ w.T, np.abs(x) @ np.abs(w).T
    if kind == Format.INT4:  # d * (q - 8) and m are up to 0.08 each, and may cancel out
        magnitude += np.abs(x).sum(axis=1)[:, None] * 0.16
        stored, exact = rounded_sums(raw, k)
        wanted += (stored - exact) @ matrix.offsets().T
    for more in (matrix.bias, prior):
        if more is not None:
            wanted, magnitude = wanted + more, magnitude + np.abs(more)
    assert (np.abs(got - wanted) <= TOLERANCES[kind] * magnitude + 1e-30).all()


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=25, deadline=None)
@given(
    m=st.integers(1, 70),
    n=st.integers(1, 130),
    k=st.integers(1, 200),
    seed=st.integers(0, 2**32 - 1),
)
def test_many_rows_may_meet_four_bits_rounded_to_eight(
    variant: str, m: int, n: int, k: int, seed: int
) -> None:
    """Each weight is off by half a 127th of the largest of its 64 columns, at most.

    A little more: steps of four bits are rounded to 256ths of those of eight.
    """
    random = np.random.default_rng(seed)
    matrix = pack(Format.INT4, n, k, random)
    raw = make_rows(Format.INT4, m, k, random)
    got = multiply(variant, matrix, raw, batch_invariant=False)
    if m < MANY_ROWS:
        assert got.tobytes() == multiply(variant, matrix, raw).tobytes()
        return
    x, w = read_rows(Format.INT4, raw, k), matrix.dense()
    # What no column has may be the largest, too: 16 numbers of each group's.
    largest = matrix.largest_of_pairs()[:, np.arange(k) // 64]
    allowed = np.abs(x) @ (largest / 127 * 0.54 + np.abs(w) * 1e-5).T
    # Nothing times a power of two is next to nothing.
    assert (np.abs(got - x @ w.T) <= allowed + 1e-18).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_many_rows_beside_each_other_are_the_same(variant: str) -> None:
    """By eight bits, too: as any of 32 to 70 rows, by any number of threads."""
    random = np.random.default_rng(7)
    matrix = pack(Format.INT4, 83, 200, random)
    raw = make_rows(Format.INT4, 70, 200, random)
    whole = multiply(variant, matrix, raw, batch_invariant=False)
    assert whole.tobytes() != multiply(variant, matrix, raw).tobytes()
    for m, num_threads in [(32, 1), (33, 2), (35, 1), (47, 3), (70, 2)]:
        got = multiply(
            variant, matrix, raw[:m], num_threads=num_threads, batch_invariant=False
        )
        assert got.tobytes() == whole[:m].tobytes(), (m, num_threads)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_broken_row_among_many_stays_alone(variant: str) -> None:
    """By eight bits, too: it is no number, and the others keep their bits."""
    random = np.random.default_rng(8)
    matrix = pack(Format.INT4, 40, 96, random)
    raw = make_rows(Format.INT4, 40, 96, random)
    whole = multiply(variant, matrix, raw, batch_invariant=False)
    four_bit_pairs(raw, 96)[1][4] = np.nan
    got = multiply(variant, matrix, raw, batch_invariant=False)
    others = np.arange(40) != 4
    assert got[others].tobytes() == whole[others].tobytes()
    assert not np.isfinite(got[4]).any()


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=25, deadline=None)
@given(
    m=st.integers(1, 40),
    n=st.integers(1, 70),
    k=st.integers(1, 300),
    seed=st.integers(0, 2**32 - 1),
)
def test_products_of_whole_numbers_are_exact(
    variant: str, m: int, n: int, k: int, seed: int
) -> None:
    """By any variant; the largest are among them, whose sums need more than 16 bits."""
    random = np.random.default_rng(seed)
    matrix = pack(Format.INT8, n, k, random)
    assert matrix.scales is not None
    matrix = replace(matrix, scales=guarded(np.ones_like(matrix.scales)))
    raw = make_rows(Format.INT8, m, k, random)
    q = eight_bit_groups(raw, k)["q"].reshape(m, -1)[:, :k]
    put_int8(raw, q.copy())
    got = multiply(variant, matrix, raw)
    assert (got == read_rows(Format.INT8, raw, k) @ matrix.dense().T).all()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", Format)
def test_a_row_is_the_same_in_any_batch(variant: str, kind: Format) -> None:
    """Bit for bit, alone and as any row of 2 to 35, by any number of threads."""
    random = np.random.default_rng(7)
    matrix = pack(kind, 83, 200, random)
    raw = make_rows(kind, 35, 200, random)
    alone = np.concatenate(
        [multiply(variant, matrix, raw[i : i + 1]) for i in range(35)]
    )
    for m, num_threads in [(2, 1), (5, 2), (8, 3), (13, 1), (31, 7), (35, 2)]:
        got = multiply(variant, matrix, raw[:m], num_threads=num_threads)
        assert got.tobytes() == alone[:m].tobytes(), (m, num_threads)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", Format)
def test_products_of_a_broken_row_stay_in_it(variant: str, kind: Format) -> None:
    """A row of no numbers, or of infinities, leaves the others' bits as they were."""
    random = np.random.default_rng(8)
    matrix = pack(kind, 40, 96, random)
    raw = make_rows(kind, 9, 96, random)
    whole = multiply(variant, matrix, raw)
    hurt = raw.copy()
    if kind == Format.INT8:
        eight_bit_groups(hurt, 96)["scale"][4, 0] = np.nan
    elif kind == Format.INT4:
        four_bit_pairs(hurt, 96)[1][4] = np.nan
    else:
        word = np.uint16 if kind == Format.BF16 else np.uint32
        infinity = 0x7F80 if kind == Format.BF16 else 0x7F800000
        hurt.view(word)[4, 50:60] = infinity
        hurt.view(word)[4, 60:70] = infinity + 1
    got = multiply(variant, matrix, hurt)
    others = np.arange(9) != 4
    assert got[others].tobytes() == whole[others].tobytes()
    assert not np.isfinite(got[4]).any()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", Format)
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_is_made_of_no_number_is_none(
    variant: str, kind: Format, broken: float
) -> None:
    """From the conversion to the product; other rows keep their bits."""
    random = np.random.default_rng(9)
    matrix = pack(kind, 40, 96, random)
    x = random.normal(size=(9, 96)).astype(np.float32)
    convert = RowOp(OpKind.CONVERT, kind, 96)
    whole = multiply(variant, matrix, convert.run(variant, x))
    x[4, 31] = broken
    got = multiply(variant, matrix, convert.run(variant, x))
    others = np.arange(9) != 4
    assert got[others].tobytes() == whole[others].tobytes()
    assert not np.isfinite(got[4]).any()
