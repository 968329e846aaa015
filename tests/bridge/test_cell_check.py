"""Memory whose cells a kernel would misread is refused, with its strides."""

import numpy as np
import pytest

from hybrid.bridge import KVLayout, KVOrder
from hybrid.bridge.cell_check import check_cells
from hybrid.scheduler import ConfigError

LAYOUT = KVLayout(5, 2, 4, 16, 8)


def strides_of(array: np.ndarray) -> tuple[int, ...]:
    """Of a float32 array, in elements."""
    return tuple(stride // 4 for stride in array.strides)


@pytest.mark.parametrize("order", list(KVOrder))
def test_both_orders_have_cells_as_kernels_read_them(order: KVOrder) -> None:
    """By the strides of arrays, not only by the layout's own."""
    layout = KVLayout(5, 2, 4, 16, 8, order=order)
    array = np.zeros(layout.shape, np.float32).transpose(layout.to_logical)
    check_cells(layout, strides_of(array))
    check_cells(layout, layout.strides)


def test_a_single_head_may_be_seen_either_way() -> None:
    """Token-major and head-major are one and the same then."""
    layout = KVLayout(5, 2, 1, 16, 8)
    array = np.zeros((5, 2, 2, 16, 1, 8), np.float32).transpose(0, 1, 2, 4, 3, 5)
    check_cells(layout, strides_of(array))


@pytest.mark.parametrize(
    ("shape", "axes", "message"),
    [
        ((5, 2, 2, 16, 4, 8), (0, 1, 2, 4, 3, 5), r"token-major \(NHD\)"),
        ((5, 2, 2, 4, 16, 16), (0, 1, 2, 3, 4, 5), "not dense"),
        ((5, 2, 2, 4, 8, 16), (0, 1, 2, 3, 5, 4), "not dense"),
    ],
)
def test_cells_of_another_inner_order_or_with_gaps_are_refused(
    shape: tuple[int, ...], axes: tuple[int, ...], message: str
) -> None:
    """The heads of one token side by side; rows with padding; dims before tokens."""
    array = np.zeros(shape, np.float32).transpose(axes)[..., :8]
    with pytest.raises(ConfigError, match=message):
        check_cells(LAYOUT, strides_of(array))


def test_cells_must_begin_at_multiples_of_a_cell() -> None:
    """An offset counts whole cells: bytes between blocks cannot be told."""
    block, *rest = LAYOUT.strides
    with pytest.raises(ConfigError, match="stride of block is 2049 elements"):
        check_cells(
            KVLayout(5, 2, 4, 16, 8, order=KVOrder.BLOCK_FIRST),
            (2049, 1024, 512, *rest[2:]),
        )
    assert block
