"""TensorRT-LLM's arithmetic over our pointers finds the bytes that our layouts name."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.bridge import ELEMENT_BYTES, KVLayout, KVOrder
from hybrid.bridge.trtllm_offsets import SECONDARY_BIT, BlockOffsets
from hybrid.bridge.trtllm_pools import TrtllmPools
from hybrid.scheduler import (
    ConfigError,
    GenerateRequest,
    SamplingParams,
    ScheduledRequest,
)
from tests.bridge.raw_kv import RawKV

BASE = KVLayout(num_blocks=6, num_layers=3, num_kv_heads=2, block_size=16, head_dim=8)


def entry(table: tuple[int, ...], name: str = "r") -> ScheduledRequest:
    """A sequence that owns some blocks."""
    request = GenerateRequest(name, (1,), SamplingParams())
    return ScheduledRequest(request, 0, (1,), 0, table, 1, 1)


@st.composite
def layouts(draw: st.DrawFn, num_blocks: int = 6) -> KVLayout:
    """Pools that a kernel takes: both orders, K and V or K alone, all element sizes."""
    return KVLayout(
        num_blocks=num_blocks,
        num_layers=draw(st.integers(1, 4)),
        num_kv_heads=draw(st.integers(1, 3)),
        block_size=draw(st.sampled_from([16, 32])),
        head_dim=draw(st.sampled_from([1, 8])),
        dtype=draw(st.sampled_from(sorted(ELEMENT_BYTES))),
        order=draw(st.sampled_from(list(KVOrder))),
        kv_factor=draw(st.sampled_from([1, 2])),
    )


@st.composite
def models(draw: st.DrawFn) -> TrtllmPools:
    """One to three regions whose layers are mixed in the model."""
    found = [draw(layouts()) for _ in range(draw(st.integers(1, 3)))]
    found = [replace(one, block_size=found[0].block_size) for one in found]
    order = draw(st.permutations(range(sum(one.num_layers for one in found))))
    parts = []
    for one in found:
        parts.append(tuple(order[: one.num_layers]))
        order = order[one.num_layers :]
    return TrtllmPools(tuple(found), tuple(parts))


def memory_of(layout: KVLayout, seed: int) -> np.ndarray:
    """A pool of random bytes, as its physical shape with bytes at the end."""
    rng = np.random.default_rng(seed)
    shape = (*layout.shape, ELEMENT_BYTES[layout.dtype])
    return rng.integers(0, 256, shape, dtype=np.uint8)


@settings(deadline=None)
@given(models(), st.data())
def test_the_kernels_bytes_are_the_layouts(
    pools: TrtllmPools, data: st.DataObject
) -> None:
    """Any (layer, K or V, sequence, token): read by address, and by our own view."""
    memories = [memory_of(one, seed) for seed, one in enumerate(pools.layouts)]
    tables = [tuple(data.draw(st.permutations(range(1, 6)))[:3]) for _ in range(2)]
    offsets = BlockOffsets(pools, max_num_seqs=3, max_num_blocks=4)
    offsets.update([entry(table) for table in tables])
    pointers = pools.pointers([memory.ctypes.data for memory in memories])
    region = data.draw(st.integers(0, len(memories) - 1))
    layout, memory = pools.layouts[region], memories[region]
    index = data.draw(st.integers(0, layout.num_layers - 1))
    raw = RawKV(
        pointers,
        pools.mapping(),
        offsets.array,
        num_heads=layout.num_kv_heads,
        block_size=layout.block_size,
        head_dim=layout.head_dim,
        element_bytes=ELEMENT_BYTES[layout.dtype],
        kv_factor=layout.kv_factor,
    )
    seq = data.draw(st.integers(0, 1))
    field = data.draw(st.integers(0, layout.kv_factor - 1))
    token = data.draw(st.integers(0, 3 * layout.block_size - 1))
    logical = memory.transpose((*layout.to_logical, len(layout.shape)))
    block, place = divmod(token, layout.block_size)
    own = logical[tables[seq][block], index, field, :, place]
    layer = pools.layers[region][index]
    found = raw.read(layer, seq, field, token)
    assert np.array_equal(found, own.reshape(layout.num_kv_heads, -1))
    raw.write(layer, seq, field, token, 255 - found)
    assert np.array_equal(own.reshape(layout.num_kv_heads, -1), found * 0 + 255 - found)


@settings(deadline=None, max_examples=30)
@given(models())
def test_no_two_numbers_share_an_address_and_all_lie_in_the_pools(
    pools: TrtllmPools,
) -> None:
    """All blocks of all layers, K and V: as many addresses as there are numbers."""
    memories = [memory_of(one, 0) for one in pools.layouts]
    offsets = BlockOffsets(pools, max_num_seqs=1, max_num_blocks=6)
    offsets.update([entry(tuple(range(6)))])
    pointers = pools.pointers([memory.ctypes.data for memory in memories])
    seen: set[int] = set()
    num_numbers = 0
    for layout, layers, memory in zip(
        pools.layouts, pools.layers, memories, strict=True
    ):
        size = ELEMENT_BYTES[layout.dtype]
        raw = RawKV(
            pointers,
            pools.mapping(),
            offsets.array,
            num_heads=layout.num_kv_heads,
            block_size=layout.block_size,
            head_dim=layout.head_dim,
            element_bytes=size,
            kv_factor=layout.kv_factor,
        )
        start, end = memory.ctypes.data, memory.ctypes.data + memory.nbytes
        shape = (
            layout.kv_factor,
            6 * layout.block_size,
            layout.num_kv_heads,
            layout.head_dim,
        )
        for layer in layers:
            for field, token, head, dim in np.ndindex(shape):
                address = raw.address(layer, 0, field, token, head, dim)
                assert start <= address <= end - size
                seen.add(address)
        num_numbers += memory.nbytes // size
    assert len(seen) == num_numbers


@st.composite
def steps(draw: st.DrawFn) -> list[list[tuple[int, ...]]]:
    """Tables of some steps: they grow, shrink, change rows, come and go."""
    one = st.lists(st.integers(1, 5), max_size=4).map(tuple)
    return draw(st.lists(st.lists(one, max_size=3), min_size=1, max_size=8))


@given(layouts(), steps())
def test_what_changed_is_written_and_no_more(
    layout: KVLayout, history: list[list[tuple[int, ...]]]
) -> None:
    """After any steps the rows are those of a fresh array; unreported rows stayed."""
    pools = TrtllmPools.single(layout)
    kept = BlockOffsets(pools, max_num_seqs=3, max_num_blocks=4)
    address = kept.array.ctypes.data
    for tables in history:
        before = kept.array.copy()
        written = kept.update([entry(table) for table in tables])
        fresh = BlockOffsets(pools, max_num_seqs=3, max_num_blocks=4)
        fresh.update([entry(table) for table in tables])
        used = len(tables)
        assert np.array_equal(kept.array[:, :used], fresh.array[:, :used])
        same = [row for row in range(3) if row not in written]
        assert np.array_equal(kept.array[:, same], before[:, same])
    assert kept.array.ctypes.data == address


def test_a_decode_step_writes_only_tables_that_grew() -> None:
    """The same tuple is not even compared; a longer one writes its last entry."""
    offsets = BlockOffsets(TrtllmPools.single(BASE), max_num_seqs=2, max_num_blocks=4)
    first, second = (1, 2), (3,)
    assert offsets.update([entry(first), entry(second)]) == [0, 1]
    assert offsets.update([entry(first), entry(second)]) == []
    assert offsets.update([entry(first), entry((3, 4))]) == [1]


def test_blocks_in_host_memory_carry_the_secondary_bit() -> None:
    """Read through the second pointer; back on the device, through the first."""
    pools = TrtllmPools.single(BASE)
    primary, secondary = memory_of(BASE, 1), memory_of(BASE, 2)
    offsets = BlockOffsets(pools, max_num_seqs=1, max_num_blocks=4)
    pointers = pools.pointers([primary.ctypes.data], [secondary.ctypes.data])
    raw = RawKV(
        pointers,
        pools.mapping(),
        offsets.array,
        num_heads=2,
        block_size=16,
        head_dim=8,
        element_bytes=4,
    )
    for moved, memory in (({4}, secondary), (set(), primary)):
        offsets.update([entry((2, 4))], secondary=moved)
        assert (offsets.array[0, 0, 0, 1] & SECONDARY_BIT != 0) == bool(moved)
        logical = memory.transpose((*BASE.to_logical, 6))
        own = logical[4, 1, 1, :, 3].reshape(2, -1)
        assert np.array_equal(raw.read(1, 0, 1, 16 + 3), own)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 24}, "block_size is 24, must be a power of two"),
        ({"block_size": 8}, "block_size is 8"),
        ({"num_blocks": 2**29}, "cells of the pool"),
        ({"num_kv_heads": 2**20, "head_dim": 2**10}, "bytes of a cell"),
    ],
)
def test_what_a_kernel_cannot_address_is_refused(
    change: dict[str, int], message: str
) -> None:
    """By the value and the limit, before there is a pointer."""
    with pytest.raises(ConfigError, match=message):
        TrtllmPools.single(replace(BASE, **change))


def test_layers_and_addresses_must_fit_the_layouts() -> None:
    """A layer that is missing or twice; an address too few; a null pointer."""
    with pytest.raises(ConfigError, match=r"layers are \[0, 0, 1\]"):
        TrtllmPools((BASE,), ((0, 1, 0),))
    with pytest.raises(ConfigError, match="given 2 layers"):
        TrtllmPools((BASE,), ((0, 1),))
    with pytest.raises(ConfigError, match="2 layouts, 1 lists"):
        TrtllmPools((BASE, BASE), ((0, 1, 2),))
    pools = TrtllmPools.single(BASE)
    with pytest.raises(ConfigError, match="0 addresses for 1 layouts"):
        pools.pointers([])
    with pytest.raises(ConfigError, match="primary address is 0"):
        pools.pointers([0])


def test_what_does_not_fit_the_array_is_refused() -> None:
    """More sequences or longer tables than there are places for."""
    offsets = BlockOffsets(TrtllmPools.single(BASE), max_num_seqs=1, max_num_blocks=2)
    with pytest.raises(ConfigError, match="2 sequences, must be at most 1"):
        offsets.update([entry((1,)), entry((2,))])
    with pytest.raises(ConfigError, match="table of 3 blocks, must be at most 2"):
        offsets.update([entry((1, 2, 3))])
    with pytest.raises(ConfigError, match="must be at most"):
        BlockOffsets(TrtllmPools.single(BASE), max_num_seqs=2**20, max_num_blocks=2**12)


def test_a_chunk_that_ends_within_a_block_is_refused_unless_it_is_the_last() -> None:
    """A scheduler that does not align its chunks is told so, not read wrongly."""
    offsets = BlockOffsets(TrtllmPools.single(BASE), max_num_seqs=1, max_num_blocks=4)
    chunk = entry((1, 2))._replace(token_ids=(1,) * 17, num_samples=0)
    with pytest.raises(ConfigError, match=r"ends at token 17; .* block_size 16"):
        offsets.update([chunk])
    offsets.update([chunk._replace(token_ids=(1,) * 15, num_computed_tokens=1)])
    offsets.update([chunk._replace(num_samples=1)])


@pytest.mark.parametrize("block_id", [-1, 6, 2**30])
def test_a_block_that_is_in_no_pool_is_refused(block_id: int) -> None:
    """Its offset would lie outside, or wrap around into another's cells."""
    assert BASE.num_blocks == 6
    offsets = BlockOffsets(TrtllmPools.single(BASE), max_num_seqs=1, max_num_blocks=4)
    with pytest.raises(ConfigError, match=r"must be from 0 to 5"):
        offsets.update([entry((1, block_id))])


def test_blocks_that_move_are_told_though_the_table_stays() -> None:
    """The same tuple, whichever of its blocks has moved to host memory since."""
    offsets = BlockOffsets(TrtllmPools.single(BASE), max_num_seqs=1, max_num_blocks=4)
    table = (1, 2, 3)
    offsets.update([entry(table)])
    for moved in ({2}, {1}, {1, 3}):
        offsets.update([entry(table)], secondary=moved)
        bits = offsets.array[0, 0, :, :3] & SECONDARY_BIT
        assert [{table[i] for i in np.flatnonzero(field)} for field in bits] == [
            moved,
            moved,
        ]


def test_keys_alone_stand_in_both_fields() -> None:
    """A kernel may ask for the V of a latent cache: it is the K."""
    layout = replace(BASE, kv_factor=1)
    offsets = BlockOffsets(TrtllmPools.single(layout), max_num_seqs=1, max_num_blocks=2)
    offsets.update([entry((3, 5))])
    keys, values = offsets.array[:, 0].swapaxes(0, 1)
    assert np.array_equal(keys, values)
