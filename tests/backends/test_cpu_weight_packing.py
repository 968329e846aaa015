"""Packed matrices, element by element, against the formulae of ``native/abi.h``."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybrid.backends.cpu.abi import Format
from hybrid.backends.cpu.weight_packing import (
    EightBitGroups,
    FourBitGroups,
    from_bfloat16,
    pack_bfloat16,
    pack_float32,
    pack_int4,
    pack_int8,
    packed_bytes,
    packed_scales,
    to_bfloat16,
    unpack,
)

SHAPES = st.tuples(st.integers(1, 40), st.integers(1, 70))
SEEDS = st.integers(0, 2**32 - 1)


def _numbers(shape: tuple[int, int], seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@settings(deadline=None)
@given(SHAPES, SEEDS)
def test_float32_lies_as_the_kernels_read_it(shape: tuple[int, int], seed: int) -> None:
    """Element (n, k) is [n/16][k][n%16]; what pads the matrix is zero."""
    matrix = _numbers(shape, seed)
    depth = _up(shape[1], 32)
    data = pack_float32(matrix).view(np.float32)
    assert len(data) == _up(shape[0], 16) * depth
    for (n, k), value in np.ndenumerate(matrix):
        assert data[(n // 16 * depth + k) * 16 + n % 16] == value
    assert np.count_nonzero(data) == np.count_nonzero(matrix)


@settings(deadline=None)
@given(SHAPES, SEEDS)
def test_bfloat16_lies_as_the_kernels_read_it(
    shape: tuple[int, int], seed: int
) -> None:
    """Element (n, k) is [n/16][k/2][n%16][k%2], the upper half of float32's bits."""
    matrix = from_bfloat16(to_bfloat16(_numbers(shape, seed)))
    depth = _up(shape[1], 32)
    data = pack_bfloat16(matrix).view(np.uint16)
    assert len(data) == _up(shape[0], 16) * depth
    for (n, k), value in np.ndenumerate(matrix):
        place = ((n // 16 * (depth // 2) + k // 2) * 16 + n % 16) * 2 + k % 2
        assert int(data[place]) << 16 == int(value.view(np.uint32))
    assert np.count_nonzero(data) == np.count_nonzero(matrix)


def _random_int8(rows: int, num_groups: int, seed: int) -> EightBitGroups:
    rng = np.random.default_rng(seed)
    return EightBitGroups(
        rng.integers(-128, 128, (rows, num_groups * 32), np.int8),
        rng.normal(size=(rows, num_groups)).astype(np.float16),
    )


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 3), SEEDS)
def test_int8_lies_as_the_kernels_read_it(
    rows: int, num_groups: int, seed: int
) -> None:
    """Quantum (n, k) is [n/16][k/4][n%16][k%4], plus 128, and scale [n/16][g][n%16].

    What pads the rows stands for zero.
    """
    groups = _random_int8(rows, num_groups, seed)
    depth = num_groups * 32
    data, scales = pack_int8(groups)
    assert len(data) == _up(rows, 16) * depth
    assert len(scales) == _up(rows, 16) * num_groups
    for (n, k), value in np.ndenumerate(groups.quanta):
        place = ((n // 16 * (depth // 4) + k // 4) * 16 + n % 16) * 4 + k % 4
        assert int(data[place]) - 128 == value
    assert np.count_nonzero(data != 128) == np.count_nonzero(groups.quanta)
    for (n, g), scale in np.ndenumerate(groups.scales):
        assert scales[(n // 16 * num_groups + g) * 16 + n % 16] == scale
    assert np.count_nonzero(scales) == np.count_nonzero(groups.scales)


def _random_groups(rows: int, num_groups: int, seed: int) -> FourBitGroups:
    rng = np.random.default_rng(seed)
    return FourBitGroups(
        rng.integers(0, 16, (rows, num_groups * 32), np.uint8),
        rng.normal(size=(rows, num_groups)).astype(np.float16),
        to_bfloat16(rng.normal(size=(rows, num_groups)).astype(np.float32)),
    )


@settings(deadline=None)
@given(st.integers(1, 35), st.integers(1, 3), SEEDS)
def test_int4_lies_as_the_kernels_read_it(
    rows: int, num_groups: int, seed: int
) -> None:
    """Records of 640 bytes, two groups each: nibbles, then steps, then offsets.

    What pads the rows, and the second group of an odd number's last record, is zeros.
    """
    groups = _random_groups(rows, num_groups, seed)
    data = pack_int4(groups)
    num_records = _up(num_groups, 2) // 2
    assert len(data) == _up(rows, 16) // 16 * num_records * 640
    for n, g in np.ndindex(_up(rows, 16), num_records * 2):
        record = data[(n // 16 * num_records + g // 2) * 640 :][:640]
        is_real = n < rows and g < num_groups
        steps, offsets = record[512:576].view(np.float16), record[576:].view(np.uint16)
        found = steps[g % 2 * 16 + n % 16], offsets[n % 16 * 2 + g % 2]
        assert found == ((groups.d[n, g], groups.m[n, g]) if is_real else (0, 0))
        for j, b in np.ndindex(4, 4):
            byte = record[g % 2 * 256 + (j * 16 + n % 16) * 4 + b]
            k = 32 * g + 4 * j + b
            expected = (0, 0)
            if is_real:
                expected = (groups.quanta[n, k], groups.quanta[n, k + 16])
            assert (byte & 15, byte >> 4) == expected


@settings(deadline=None)
@given(SHAPES, SEEDS, st.sampled_from(Format))
def test_unpacking_gives_the_numbers_back(
    shape: tuple[int, int], seed: int, form: Format
) -> None:
    """Of every format, padding gone; data has the bytes that were announced."""
    matrix = _numbers(shape, seed)
    scales = None
    if form is Format.F32:
        data, expected = pack_float32(matrix), matrix
    elif form is Format.BF16:
        data, expected = pack_bfloat16(matrix), from_bfloat16(to_bfloat16(matrix))
    elif form is Format.INT8:
        eights = _random_int8(shape[0], _up(shape[1], 32) // 32, seed)
        data, used = pack_int8(eights)
        scales = np.full(packed_scales(*shape), np.nan, np.float16)
        scales[: len(used)] = used
        assert scales.nbytes % 64 == 0
        wide = np.repeat(eights.scales.astype(np.float32), 32, 1)
        expected = (eights.quanta * wide)[:, : shape[1]]
    else:
        groups = _random_groups(shape[0], _up(shape[1], 32) // 32, seed)
        data = pack_int4(groups)
        d = np.repeat(groups.d.astype(np.float32), 32, 1)
        m = np.repeat(from_bfloat16(groups.m), 32, 1)
        quanta = groups.quanta.astype(np.float32) - 8
        expected = (d * quanta + m)[:, : shape[1]]
    assert len(data) == packed_bytes(form, *shape)
    np.testing.assert_array_equal(unpack(form, data, scales, shape), expected)


@pytest.mark.parametrize(
    ("number", "bits"),
    [
        (1.0, 0x3F80),
        (1.00390625, 0x3F80),  # half way: to the even one below
        (1.01171875, 0x3F82),  # half way: to the even one above
        (-0.0, 0x8000),
        (3.4e38, 0x7F80),  # beyond the largest: infinity
        (float("-inf"), 0xFF80),
    ],
)
def test_bfloat16_rounds_to_nearest_even(number: float, bits: int) -> None:
    """As the hardware does."""
    assert to_bfloat16(np.float32([number])).tolist() == [bits]


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001])
def test_bfloat16_keeps_what_is_no_number(bits: int) -> None:
    """Also a NaN whose rounding would carry into the sign, or leave an infinity."""
    number = np.array([bits], np.uint32).view(np.float32)
    assert np.isnan(from_bfloat16(to_bfloat16(number))).all()
