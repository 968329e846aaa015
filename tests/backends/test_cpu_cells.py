"""The pool of executor cpu: where its cells lie, and what a copy moves."""

import ctypes

import numpy as np
import pytest

from hybrid.backends.cpu.abi import Format
from hybrid.backends.cpu.kv_cells import FORMATS, KVCells, cell_bytes
from hybrid.backends.interface import KVSpec
from hybrid.bridge import ELEMENT_BYTES, KVOrder
from hybrid.scheduler import BlockCopy, ConfigError

LAYERS, HEADS, BLOCK, DIM, BLOCKS = 3, 2, 8, 16, 5


def _spec(dtype: str) -> KVSpec:
    return KVSpec(
        num_layers=LAYERS,
        num_kv_heads=HEADS,
        head_dim=DIM,
        dtype=dtype,
        order=KVOrder.LAYER_FIRST,
        available_bytes=1 << 30,
    )


def _bytes_of(cells: KVCells, size: int) -> np.ndarray:
    """The pool's memory, as whoever gets its address sees it."""
    buffer = (ctypes.c_uint8 * size).from_address(cells.describe().base)
    return np.frombuffer(buffer, dtype=np.uint8)


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_pool_is_described_as_the_layout_says(dtype: str) -> None:
    """Strides, alignment and format, zeroed; int8 has its scales behind it."""
    cells = KVCells(_spec(dtype), num_blocks=BLOCKS, block_size=BLOCK)
    pool = cells.describe()
    data = HEADS * BLOCK * DIM * ELEMENT_BYTES[dtype]
    cell = data + (HEADS * BLOCK * 4 if dtype == "int8" else 0)
    assert pool.base % 64 == 0
    assert (pool.block_stride, pool.kv_stride, pool.layer_stride) == (
        cell,
        BLOCKS * cell,
        2 * BLOCKS * cell,
    )
    assert (pool.num_blocks, pool.block_size) == (BLOCKS, BLOCK)
    assert Format(pool.format) is FORMATS[dtype]
    assert not _bytes_of(cells, LAYERS * 2 * BLOCKS * cell).any()
    if dtype != "int8":
        layout = _spec(dtype).layout(BLOCKS, BLOCK)
        block, layer, kv, *_ = (
            stride * ELEMENT_BYTES[dtype] for stride in layout.strides
        )
        assert (pool.block_stride, pool.layer_stride, pool.kv_stride) == (
            block,
            layer,
            kv,
        )


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_copy_moves_a_whole_block_of_every_layer(dtype: str) -> None:
    """K, V and scales go along, in the order of the copies; others stay."""
    cells = KVCells(_spec(dtype), num_blocks=BLOCKS, block_size=BLOCK)
    cell = cell_bytes(num_kv_heads=HEADS, block_size=BLOCK, head_dim=DIM, dtype=dtype)
    memory = _bytes_of(cells, LAYERS * 2 * BLOCKS * cell)
    memory[:] = np.random.default_rng(0).integers(0, 256, memory.size, dtype=np.uint8)
    wanted = memory.reshape(LAYERS, 2, BLOCKS, cell).copy()
    cells.copy_blocks((BlockCopy(1, 3), BlockCopy(3, 4)))
    wanted[:, :, 3] = wanted[:, :, 1]
    wanted[:, :, 4] = wanted[:, :, 1]
    assert np.array_equal(memory.reshape(wanted.shape), wanted)


@pytest.mark.parametrize(
    ("head_dim", "block_size", "wanted"),
    [(64, 32, 4352), (64, 8, 1088), (80, 16, 2688), (20, 5, 384), (2, 1, 64)],
)
def test_cells_of_int8_are_whole_lines(
    head_dim: int, block_size: int, wanted: int
) -> None:
    """Vectors are padded to 16 numbers, and cells to 64 bytes."""
    size = cell_bytes(
        num_kv_heads=HEADS, block_size=block_size, head_dim=head_dim, dtype="int8"
    )
    assert size == wanted


def test_a_pool_beyond_all_memory_is_refused_with_its_bytes() -> None:
    """The message names what to lower."""
    with pytest.raises(
        ConfigError, match=r"bytes .* does not fit in memory; lower num"
    ):
        KVCells(_spec("float32"), num_blocks=1 << 50, block_size=BLOCK)
