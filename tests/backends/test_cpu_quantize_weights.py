"""Quantised weights stay as near to the numbers as their grids allow."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from hybrid.backends.cpu.quantize_weights import (
    MAX_INT4_WEIGHT,
    MAX_INT8_WEIGHT,
    quantize_int4,
    quantize_int8,
)
from hybrid.backends.cpu.weight_packing import (
    EightBitGroups,
    FourBitGroups,
    from_bfloat16,
)

FINITE = st.floats(-1e4, 1e4, width=32)
MATRICES = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 5), st.integers(1, 70)), elements=FINITE
)


def _numbers(groups: FourBitGroups) -> NDArray[np.float32]:
    d = np.repeat(groups.d.astype(np.float32), 32, axis=1)
    m = np.repeat(from_bfloat16(groups.m), 32, axis=1)
    return d * (groups.quanta.astype(np.float32) - 8) + m


def _int8_numbers(groups: EightBitGroups) -> NDArray[np.float32]:
    return groups.quanta * np.repeat(groups.scales.astype(np.float32), 32, axis=1)


def _groups(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Padded with zeros, ``[N, K / 32, 32]``."""
    padding = (0, -matrix.shape[1] % 32)
    return np.pad(matrix, ((0, 0), padding)).reshape(len(matrix), -1, 32)


@settings(deadline=None)
@given(MATRICES, st.sampled_from([1e-9, 1e-6, 1e-4, 1.0, 800.0]))
def test_int8_is_off_by_half_a_step_at_most(
    matrix: NDArray[np.float32], factor: float
) -> None:
    """A step is a 127th of its group's largest number, as near as float16 comes.

    Down to where float16 has a single bit: nothing is cut off.
    """
    groups = _groups(matrix * np.float32(factor))
    found = quantize_int8(matrix * np.float32(factor))
    steps = found.scales.astype(np.float32)
    largest = np.abs(groups).max(axis=2)
    assert (np.abs(steps - largest / 127) <= largest / 127 * 2**-11 + 2**-24).all()
    off = np.abs(_int8_numbers(found).reshape(groups.shape) - groups)
    assert (off <= steps[..., None] * 0.501).all()
    assert found.quanta.min() >= -127


def test_int8_of_zeros_is_zeros() -> None:
    """A group without numbers has no step; its neighbours keep theirs."""
    matrix = np.ones((2, 70), np.float32)
    matrix[0, :32] = 0
    found = quantize_int8(matrix)
    assert found.scales[0, 0] == 0
    assert not found.quanta[0, :32].any()
    assert not found.quanta[:, 70:].any()
    np.testing.assert_allclose(_int8_numbers(found)[:, :70], matrix, rtol=2**-11)


def test_int8_that_was_int8_stays_what_it_was() -> None:
    """Bit for bit, where a group uses its range: as all do that were quantised so."""
    rng = np.random.default_rng(0)
    quanta = rng.integers(-127, 128, (9, 96), np.int8)
    quanta[:, ::32] = 127
    scales = rng.uniform(1e-4, 1e-2, (9, 3)).astype(np.float16)
    found = quantize_int8(_int8_numbers(EightBitGroups(quanta, scales)))
    np.testing.assert_array_equal(found.quanta, quanta)
    np.testing.assert_array_equal(found.scales, scales)


@pytest.mark.parametrize("value", [MAX_INT8_WEIGHT, -MAX_INT8_WEIGHT])
def test_int8_holds_all_that_it_is_said_to_hold(value: float) -> None:
    """Scales are float16; that of the largest number is the largest."""
    found = quantize_int8(np.full((1, 32), value, np.float32))
    np.testing.assert_array_equal(_int8_numbers(found), value)


@settings(deadline=None)
@given(MATRICES)
def test_int4_is_off_by_few_steps_at_most(matrix: NDArray[np.float32]) -> None:
    """Of cut ends, with the halves' own rounding; half a step elsewhere."""
    groups = quantize_int4(matrix)
    columns, padded = matrix.shape[1], _groups(matrix)
    extent = padded.max(axis=2) - padded.min(axis=2)
    rounding = np.abs(padded).max(axis=2) * (2**-8 + 2**-10) + 1e-6
    limit = np.repeat(extent / 15 * 2.8 + rounding, 32, axis=1)[:, :columns]
    assert (np.abs(_numbers(groups)[:, :columns] - matrix) <= limit).all()
    assert groups.quanta.max() <= 15


def test_int4_is_nearer_than_the_plain_grid() -> None:
    """Searching ranges and fitting the grid takes a tenth of the error, and more."""
    matrix = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
    groups = matrix.reshape(64, -1, 32)
    low, high = groups.min(axis=2, keepdims=True), groups.max(axis=2, keepdims=True)
    step = (high - low) / 15
    plain = np.rint((groups - low) / step) * step + low
    found = _numbers(quantize_int4(matrix)).reshape(groups.shape)
    assert np.square(found - groups).sum() < 0.9 * np.square(plain - groups).sum()


def test_int4_is_nearest_where_it_matters() -> None:
    """Importance takes error from the columns that cost, and gives it to others."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(64, 250)).astype(np.float32)
    importance = np.exp(rng.normal(size=250) * 2).astype(np.float32)
    plain, weighed = (
        np.square(_numbers(quantize_int4(matrix, costs))[:, :250] - matrix)
        for costs in (None, importance)
    )
    assert (weighed * importance).sum() < 0.6 * (plain * importance).sum()
    assert plain.sum() < weighed.sum() < 2 * plain.sum()


@pytest.mark.parametrize("importance", [0.0, 1.0, 1e30])
def test_equal_importance_is_none(importance: float) -> None:
    """Only what one column is to another counts, also where all carried nothing."""
    matrix = np.random.default_rng(0).normal(size=(8, 40)).astype(np.float32)
    equal = quantize_int4(matrix, np.full(40, importance, np.float32))
    np.testing.assert_allclose(_numbers(equal), _numbers(quantize_int4(matrix)), 1e-3)


@pytest.mark.parametrize("value", [0.0, 1.5, -3.0])
def test_int4_of_one_number_is_that_number(value: float) -> None:
    """A group without extent has no step; nothing is divided by it."""
    groups = quantize_int4(np.full((2, 32), value, np.float32))
    np.testing.assert_array_equal(_numbers(groups), value)


@pytest.mark.parametrize("value", [MAX_INT4_WEIGHT, -MAX_INT4_WEIGHT])
def test_int4_holds_all_that_it_is_said_to_hold(value: float) -> None:
    """Steps are float16; those of the largest numbers fit."""
    matrix = np.random.default_rng(0).uniform(-1, 1, (50, 32)).astype(np.float32)
    matrix *= abs(value)
    matrix[:, 0] = value
    assert quantize_int4(matrix).is_finite
