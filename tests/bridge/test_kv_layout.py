"""Both physical orders describe the same logical pool, byte for byte."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.bridge import KVLayout, KVOrder
from hybrid.scheduler import ConfigError

SIZES = st.integers(1, 4)


@st.composite
def layouts(draw: st.DrawFn) -> KVLayout:
    """Small pools of every shape, order and element size."""
    return KVLayout(
        num_blocks=draw(SIZES),
        num_layers=draw(SIZES),
        num_kv_heads=draw(SIZES),
        block_size=draw(SIZES),
        head_dim=draw(SIZES),
        dtype=draw(st.sampled_from(["float32", "bfloat16", "int8"])),
        order=draw(st.sampled_from(list(KVOrder))),
    )


@given(layouts(), st.data())
def test_offsets_are_those_of_the_permuted_array(
    layout: KVLayout, data: st.DataObject
) -> None:
    """An element's offset is where numpy finds it in the logical view of the pool."""
    pool = np.arange(np.prod(layout.shape)).reshape(layout.shape)
    logical = pool.transpose(layout.to_logical)
    assert logical.shape == layout.logical_shape
    at = tuple(data.draw(st.integers(0, size - 1)) for size in layout.logical_shape)
    assert layout.element_offset(*at) == logical[at]
    assert layout.strides == tuple(s // pool.itemsize for s in logical.strides)


@given(layouts())
def test_no_two_elements_share_an_offset_and_all_lie_in_the_pool(
    layout: KVLayout,
) -> None:
    """The offsets of all coordinates are a permutation of the pool's elements."""
    places = np.ndindex(*layout.logical_shape)
    offsets = sorted(layout.element_offset(*place) for place in places)
    assert offsets == list(range(int(np.prod(layout.shape))))


@given(layouts())
def test_a_cell_is_one_run_and_a_block_counts_its_bytes(layout: KVLayout) -> None:
    """Heads, tokens and dims of a (block, layer, K or V) lie end to end."""
    _, _, _, head, token, dim = layout.strides
    assert (head, token, dim) == (
        layout.block_size * layout.head_dim,
        layout.head_dim,
        1,
    )
    cells = layout.num_blocks * layout.num_layers * 2
    assert cells * layout.cell_elements == np.prod(layout.shape)
    assert layout.total_bytes == layout.num_blocks * layout.block_bytes


def test_a_block_is_one_run_of_bytes_in_block_first_order() -> None:
    """Offload and transfer of a block are one copy there."""
    layout = KVLayout(3, 2, 2, 4, 8, "bfloat16", KVOrder.BLOCK_FIRST)
    assert layout.strides[0] * 2 == layout.block_bytes
    assert layout.shape == (3, 2, 2, 2, 4, 8)


def test_a_layer_is_one_dense_array_in_layer_first_order() -> None:
    """Each layer's K is ``[block, head, token, dim]`` without gaps."""
    layout = KVLayout(3, 2, 2, 4, 8, "bfloat16", KVOrder.LAYER_FIRST)
    assert layout.strides[0] == layout.cell_elements
    assert layout.shape == (2, 2, 3, 2, 4, 8)


@pytest.mark.parametrize(
    "field", ["num_blocks", "num_layers", "block_size", "head_dim"]
)
def test_a_size_below_one_is_refused_by_name(field: str) -> None:
    """The message names the field and its value."""
    sizes = {
        "num_blocks": 1,
        "num_layers": 1,
        "num_kv_heads": 1,
        "block_size": 1,
        "head_dim": 1,
    }
    with pytest.raises(ConfigError, match=f"{field} is 0"):
        KVLayout(**(sizes | {field: 0}))


def test_an_unknown_dtype_and_a_place_outside_are_refused() -> None:
    """Both messages say what there is."""
    with pytest.raises(ConfigError, match="float32, bfloat16"):
        KVLayout(1, 1, 1, 1, 1, "float64")
    with pytest.raises(IndexError, match="token is 4, must be from 0 to 3"):
        KVLayout(1, 1, 1, 4, 1).element_offset(0, 0, 0, 0, 4, 0)
