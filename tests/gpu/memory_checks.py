"""Checks of a device's memory: who sees which bytes, at which addresses."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from hybrid.backends.trtllm.kv_scatter import scatter_by_indexing, scatter_kv
from hybrid.bridge import ELEMENT_BYTES, KVLayout, KVOrder
from hybrid.bridge.trtllm_offsets import BlockOffsets
from hybrid.bridge.trtllm_pools import TrtllmPools
from hybrid.bridge.zero_copy import (
    INTEGER_VIEWS,
    address_of,
    same_stream,
    to_torch,
    view_address,
    view_of,
)
from hybrid.scheduler import GenerateRequest, SamplingParams, ScheduledRequest
from tests.backends.kv_scatter_property import check_scatter, layer_cells
from tests.bridge.raw_kv import RawKV
from tests.gpu.device_check import Setting

DTYPES = sorted({*ELEMENT_BYTES, *INTEGER_VIEWS})
POOL = KVLayout(num_blocks=6, num_layers=3, num_kv_heads=2, block_size=16, head_dim=8)
TABLES = ((5, 1, 3), (2, 4))
BIG = KVLayout(
    num_blocks=257,
    num_layers=30,
    num_kv_heads=3,
    block_size=32,
    head_dim=64,
    order=KVOrder.BLOCK_FIRST,
)
"""SmolLM2's cells, 8192 tokens of them."""
NUM_HEADS = 9


def check_zero_copy(setting: Setting) -> str:
    """CuPy (numpy on a CPU) and torch: one address, and what one writes both see."""
    need_cupy(setting)
    for dtype in DTYPES:
        pool = random_bytes((4, 6, 2), dtype, setting.device)
        for tensor in (pool, pool[1:, 2], pool.permute(2, 0, 1)):
            _check_view(tensor, dtype)
        _check_foreign(pool, dtype)
    if setting.device == "cuda":
        _check_interface()
        _check_side_stream()
    return f"{len(DTYPES)} dtypes"


def _check_view(tensor: torch.Tensor, dtype: str) -> None:
    with same_stream(tensor):
        view = view_of(tensor)
        assert view.dtype == dtype
        assert address_of(view.array) == tensor.data_ptr()
        assert host_bytes(view.array) == host_bytes(as_bytes(tensor))
        back = to_torch(view)
        assert back.dtype == tensor.dtype
        assert (back.data_ptr(), back.stride()) == (tensor.data_ptr(), tensor.stride())
        view.array[0] = view.array[1]
        assert host_bytes(as_bytes(tensor[0])) == host_bytes(as_bytes(tensor[1]))
        tensor[1].copy_(tensor[-1])
        assert host_bytes(view.array[1]) == host_bytes(view.array[-1])


def _check_foreign(pool: torch.Tensor, dtype: str) -> None:
    """Memory by its address, its owner's only other name being gone."""
    expected = host_bytes(as_bytes(pool))
    owner = pool.clone()
    view = view_address(
        owner.data_ptr(),
        tuple(owner.shape),
        dtype,
        owner=owner,
        device_id=owner.device.index,
    )
    del owner
    # Would be given the memory, were it free.
    other = torch.zeros_like(pool)
    assert host_bytes(view.array) == expected
    assert other.data_ptr() != address_of(view.array)


def _check_interface() -> None:
    """The other protocol, by which ``asarray`` and ``as_tensor`` go."""
    import cupy  # noqa: PLC0415 - where there is a device only

    tensor = torch.arange(8, device="cuda", dtype=torch.float32)
    array = cupy.asarray(tensor)
    assert array.data.ptr == tensor.data_ptr() == address_of(array)
    back = torch.as_tensor(array, device="cuda")
    assert back.data_ptr() == tensor.data_ptr()


def _check_side_stream() -> None:
    """Turns of both libraries on one number; a race would lose some of them."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        counter = torch.zeros(1 << 20, device="cuda", dtype=torch.int32)
        with same_stream(counter):
            array = view_of(counter).array
            for _ in range(200):
                array += 1
                counter.add_(1)
        assert (counter == 400).all().item()


def check_addresses(setting: Setting) -> str:
    """The kernel's own arithmetic over our pointers, on the device's memory itself."""
    need_cupy(setting)
    num_runs = 0
    for order in KVOrder:
        for dtype in ("bfloat16", "float8_e4m3fn"):
            layout = replace(POOL, dtype=dtype, order=order)
            num_runs += _check_addresses_of(layout, setting.device)
    return f"{num_runs} runs of a token and head"


def _check_addresses_of(layout: KVLayout, device: str) -> int:
    memory = random_bytes(layout.shape, layout.dtype, device)
    pools = TrtllmPools.single(layout)
    offsets = BlockOffsets(pools, max_num_seqs=2, max_num_blocks=3)
    offsets.update([_entry(table) for table in TABLES])
    raw = RawKV(
        pools.pointers([memory.data_ptr()]),
        pools.mapping(),
        offsets.array,
        num_heads=layout.num_kv_heads,
        block_size=layout.block_size,
        head_dim=layout.head_dim,
        element_bytes=ELEMENT_BYTES[layout.dtype],
    )
    by_block = as_bytes(memory.permute(layout.to_logical)).cpu().numpy()
    width = layout.head_dim * raw.element_bytes
    num_runs = 0
    for layer, seq, field, token, head in _places(layout):
        block, place = divmod(token, layout.block_size)
        own = by_block[TABLES[seq][block], layer, field, head, place].tobytes()
        address = raw.address(layer, seq, field, token, head, 0)
        view = view_address(
            address, (width,), "uint8", owner=memory, device_id=memory.device.index
        )
        assert host_bytes(view.array) == own, (layout.order, layer, seq, field, token)
        num_runs += 1
    return num_runs


def _places(layout: KVLayout) -> Iterator[tuple[int, int, int, int, int]]:
    for seq, table in enumerate(TABLES):
        # An odd step: every place of a block comes up, in one block or another.
        for token in range(0, len(table) * layout.block_size, 3):
            for layer in range(layout.num_layers):
                for field in (0, 1):
                    for head in range(layout.num_kv_heads):
                        yield layer, seq, field, token, head


def _entry(table: tuple[int, ...]) -> ScheduledRequest:
    request = GenerateRequest("r", (1,), SamplingParams())
    return ScheduledRequest(request, 0, (1,), 0, table, 1, 1)


def check_kv_scatter(setting: Setting) -> str:
    """New K and V land where plain indexing on the CPU puts them, bit for bit."""
    if setting.device != "cuda":
        check_scatter(scatter_kv, max_examples=10)
        return "by indexing"
    rates = []
    for dtype in ("float32", "bfloat16", "float16", "float8_e4m3fn"):
        computed = "bfloat16" if dtype.startswith("float8") else dtype
        rates.append(f"{dtype} {_scatter_rate(dtype, computed):,.0f} GB/s")
    return ", ".join(rates)


def _scatter_rate(dtype: str, computed: str) -> float:
    layout = replace(BIG, dtype=dtype)
    num_tokens = (layout.num_blocks - 1) * layout.block_size
    source = torch.Generator("cuda").manual_seed(0)
    slots = torch.randperm(num_tokens, device="cuda", generator=source)
    slots += layout.block_size
    width = (NUM_HEADS + 2 * layout.num_kv_heads) * layout.head_dim
    qkv = torch.randn(num_tokens, width, device="cuda", generator=source)
    qkv = (qkv * 100).to(getattr(torch, computed))
    true = getattr(torch, dtype)
    pool = torch.zeros(layout.shape, device="cuda").to(true)
    expected = torch.zeros(layout.shape).to(true)
    cells = layer_cells(pool, layout, 7)
    scatter_kv(qkv, *cells, slots, 0.5)
    theirs = layer_cells(expected, layout, 7)
    scatter_by_indexing(qkv.cpu(), *theirs, slots.cpu(), 0.5)
    assert torch.equal(as_bytes(pool.cpu()), as_bytes(expected)), dtype
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(20):
        scatter_kv(qkv, *cells, slots, 0.5)
    end.record()
    torch.cuda.synchronize()
    seconds = start.elapsed_time(end) / 1000 / 20
    moved = 2 * layout.num_kv_heads * layout.head_dim * num_tokens
    return moved * (qkv.element_size() + ELEMENT_BYTES[dtype]) / seconds / 1e9


def need_cupy(setting: Setting) -> None:
    """Skip where a device's memory cannot be looked at."""
    if setting.device == "cuda":
        pytest.importorskip("cupy")


def random_bytes(shape: tuple[int, ...], dtype: str, device: str) -> torch.Tensor:
    """A tensor of any dtype, any bits."""
    true = getattr(torch, dtype)
    source = torch.Generator().manual_seed(0)
    size = (*shape[:-1], shape[-1] * true.itemsize)
    memory = torch.randint(0, 256, size, dtype=torch.uint8, generator=source)
    return memory.view(true).to(device)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in order, as bytes."""
    return tensor.contiguous().view(torch.uint8)


def host_bytes(array: object) -> bytes:
    """The elements of a tensor, a CuPy or a numpy array, in order."""
    if isinstance(array, torch.Tensor):
        array = array.cpu().numpy()
    elif not isinstance(array, np.ndarray):
        array = array.get()  # type: ignore[attr-defined]
    return array.tobytes()
