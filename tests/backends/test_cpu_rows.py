"""Norms, the gated unit and conversions, row by row, against float64."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybrid.backends.cpu.abi import Format, OpKind
from tests.backends.activation_rows import read_rows
from tests.backends.kernel_stand import VARIANTS
from tests.backends.row_ops import RowOp

_Array = NDArray[Any]
KINDS = [OpKind.NORM, OpKind.CONVERT, OpKind.SILU_MUL]
FORMATS = list(Format)
LARGEST = 3e38
"""Nearly what float32 and bfloat16 can say."""


def make_op(kind: OpKind, form: Format, width: int) -> RowOp:
    """Make an op with a random vector, where it takes one."""
    vector = np.random.default_rng(width).normal(size=width).astype(np.float32)
    return RowOp(kind, form, width, vector)


def make_input(row_op: RowOp, rows: int, seed: int, scale: float = 1.0) -> _Array:
    """Make random numbers of the op's width."""
    width = row_op.width * (2 if row_op.kind == OpKind.SILU_MUL else 1)
    x = np.random.default_rng(seed).normal(size=(rows, width)) * scale
    return x.astype(np.float32)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 20),
    # Groups of 32 are quantised by sixteen: 512 numbers at once.
    width=st.one_of(st.integers(1, 300), st.integers(480, 1100)),
    scale=st.sampled_from([1e-3, 1.0, 30.0, 1e6]),
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_are_computed(  # noqa: PLR0917 - pytest gives them by name
    variant: str,
    form: Format,
    kind: OpKind,
    rows: int,
    width: int,
    scale: float,
    seed: int,
) -> None:
    """Any width and any format, numbers small and large."""
    row_op = make_op(kind, form, width)
    x = make_input(row_op, rows, seed, scale)
    row_op.check(row_op.run(variant, x), x)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", [Format.INT8, Format.INT4])
@settings(max_examples=25, deadline=None)
@given(
    powers=st.lists(st.none() | st.integers(-120, 100), min_size=2, max_size=40),
    seed=st.integers(0, 2**32 - 1),
)
def test_groups_may_be_far_apart(
    variant: str, form: Format, powers: list[int | None], seed: int
) -> None:
    """Zeros beside the largest; what is too small beside these becomes zeros."""
    row_op = make_op(OpKind.CONVERT, form, 32 * len(powers))
    scales = np.repeat([0.0 if n is None else 2.0**n for n in powers], 32)
    x = np.random.default_rng(seed).normal(size=(3, len(scales))) * scales
    x = x.astype(np.float32)
    row_op.check(row_op.run(variant, x), x)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_same_by_any_number_of_threads(
    variant: str, form: Format, kind: OpKind
) -> None:
    """Bit for bit, alone and beside others."""
    row_op = make_op(kind, form, 75)
    x = make_input(row_op, 11, 3)
    alone = [row_op.run(variant, x[i : i + 1]).tobytes() for i in range(len(x))]
    for num_threads in (1, 2, 3, 7):
        assert row_op.run(variant, x, num_threads).tobytes() == b"".join(alone)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_broken_number_stays_in_its_row(
    variant: str, form: Format, kind: OpKind, broken: float
) -> None:
    """Others keep their bits; its own row shows it, whatever the format."""
    row_op = make_op(kind, form, 40)
    x = make_input(row_op, 7, 4)
    whole = row_op.run(variant, x)
    others = np.arange(7) != 3
    for place in (1, -2):
        if kind == OpKind.SILU_MUL and place == 1 and broken == -np.inf:
            continue  # of such a gate silu makes a 0, rightly
        hurt_x = x.copy()
        hurt_x[3, place] = broken
        hurt = row_op.run(variant, hurt_x)
        assert hurt[others].tobytes() == whole[others].tobytes()
        with np.errstate(invalid="ignore"):
            assert not np.isfinite(read_rows(form, hurt[3:4], 40)).all()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "value",
    [0.0, -0.0, 1e-45, 1e-40, 1e-38, 1e-20, -90.0, 1e19, 1e30, LARGEST, -LARGEST],
)
def test_finite_numbers_give_numbers(
    variant: str, form: Format, kind: OpKind, value: float
) -> None:
    """Zeros, denormals and the largest alike, as far as float32 can say the answer."""
    row_op = make_op(kind, form, 40)
    x = make_input(row_op, 3, 5)
    x[1, :40] = value
    if kind == OpKind.SILU_MUL:
        x[1, 40:] = 0.25  # or the product would be infinite
    raw = row_op.run(variant, x)
    got = read_rows(form, raw, 40)
    assert np.isfinite(got).all()
    if kind != OpKind.NORM or abs(value) < 1e19:  # or squares are infinite: zeros
        row_op.check(raw, x)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("value", [LARGEST, -LARGEST])
def test_the_largest_numbers_beside_none(
    variant: str, form: Format, value: float
) -> None:
    """A row that holds no numbers has sums that no whole number can say."""
    row_op = make_op(OpKind.CONVERT, form, 96)
    x = np.full((1, 96), value, np.float32)
    x[0, 0] = np.nan
    with np.errstate(invalid="ignore"):
        assert not np.isfinite(read_rows(form, row_op.run(variant, x), 96)).all()
