"""torch and numpy see one memory: same addresses, writes on both sides, true dtypes."""

import ctypes
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from hybrid.bridge.kv_layout import ELEMENT_BYTES
from hybrid.bridge.zero_copy import (
    INTEGER_VIEWS,
    PER_THREAD_STREAMS,
    ArrayView,
    address_of,
    same_stream,
    to_cupy,
    to_numpy,
    to_torch,
    view_address,
    view_of,
)
from hybrid.scheduler import ConfigError

DTYPES = sorted({*ELEMENT_BYTES, *INTEGER_VIEWS, "int32", "int64", "uint8"})


def make_tensor(dtype: str, *shape: int) -> torch.Tensor:
    """Bytes 0, 1, 2, ... as a tensor of any dtype."""
    true = getattr(torch, dtype)
    num_bytes = int(np.prod(shape)) * true.itemsize
    memory = torch.arange(num_bytes, dtype=torch.int64).to(torch.uint8)
    return memory.view(true).view(shape)


def bytes_of(tensor: torch.Tensor) -> list[int]:
    """A tensor's bytes, in the order of its elements."""
    return tensor.contiguous().view(torch.uint8).flatten().tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_sees_the_memory_of_a_tensor(dtype: str) -> None:
    """Address, shape and bytes are one; each side sees what the other writes."""
    tensor = make_tensor(dtype, 3, 4)
    view = to_numpy(tensor)
    assert view.dtype == dtype
    assert view.array.shape == (3, 4)
    assert view.array.dtype == INTEGER_VIEWS.get(dtype, dtype)
    assert address_of(view.array) == address_of(tensor) == tensor.data_ptr()
    assert list(view.array.tobytes()) == bytes_of(tensor)
    view.array[1] = view.array[2]
    assert bytes_of(tensor[1]) == bytes_of(tensor[2])
    tensor[0].copy_(tensor[2])
    assert view.array[0].tobytes() == view.array[2].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_comes_back_with_its_true_dtype(dtype: str) -> None:
    """There and back is the same memory."""
    tensor = make_tensor(dtype, 5, 2)
    back = to_torch(to_numpy(tensor))
    assert back.dtype == tensor.dtype
    assert back.data_ptr() == tensor.data_ptr()
    assert bytes_of(back) == bytes_of(tensor)
    back[0].copy_(back[4])
    assert bytes_of(tensor[0]) == bytes_of(tensor[4])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_strides_are_kept(dtype: str) -> None:
    """A layer's K of a block-first pool: a view that skips what lies between."""
    pool = make_tensor(dtype, 4, 3, 2, 2, 4, 2)
    keys = pool[:, 1, 0].permute(0, 2, 1, 3)
    view = to_numpy(keys)
    assert address_of(view.array) == keys.data_ptr() > pool.data_ptr()
    steps = [stride * keys.element_size() for stride in keys.stride()]
    assert list(view.array.strides) == steps
    assert list(view.array.tobytes()) == bytes_of(keys)
    back = to_torch(view)
    assert (back.data_ptr(), back.stride()) == (keys.data_ptr(), keys.stride())


def test_a_parameter_shares_its_memory_too() -> None:
    """Gradients are nobody's business here."""
    weight = torch.nn.Parameter(torch.ones(2, 2))
    to_numpy(weight).array[0] = 7
    assert weight[0].tolist() == [7, 7]


def test_an_array_keeps_the_memory_of_its_tensor() -> None:
    """The tensor's names may go; the memory stays until the array goes."""
    memory = np.arange(4096, dtype=np.uint16)
    watched = weakref.ref(memory)
    tensor = torch.from_numpy(memory).view(torch.bfloat16)
    array = to_numpy(tensor).array
    del memory, tensor
    gc.collect()
    assert watched() is not None
    assert array.tolist() == list(range(4096))
    del array
    gc.collect()
    assert watched() is None


def test_a_tensor_keeps_the_memory_of_its_array() -> None:
    """As the other way round."""
    memory = np.arange(4096, dtype=np.uint16)
    watched = weakref.ref(memory)
    tensor = to_torch(ArrayView(memory, "bfloat16"))
    del memory
    gc.collect()
    assert watched() is not None
    del tensor
    gc.collect()
    assert watched() is None


def test_a_read_only_array_is_refused() -> None:
    """A tensor of it could be written to all the same."""
    array = np.zeros(3, dtype=np.float32)
    array.flags.writeable = False
    with pytest.raises(ConfigError, match="read-only"):
        to_torch(ArrayView(array, "float32"))


class Buffer:
    """What another library would own: memory, freed with the object."""

    def __init__(self, num_bytes: int) -> None:
        self.memory = (ctypes.c_uint8 * num_bytes)(*range(num_bytes))
        self.address = ctypes.addressof(self.memory)


@pytest.mark.parametrize("dtype", DTYPES)
def test_foreign_memory_is_seen_by_its_address(dtype: str) -> None:
    """Read and written in place, as an array and as a tensor."""
    size = getattr(torch, dtype).itemsize
    buffer = Buffer(6 * size)
    view = view_address(buffer.address, (3, 2), dtype, owner=buffer)
    assert view.dtype == dtype
    assert address_of(view.array) == buffer.address
    assert list(view.array.tobytes()) == list(range(6 * size))
    tensor = to_torch(view)
    assert tensor.data_ptr() == buffer.address
    tensor[0].copy_(tensor[2])
    assert bytes(buffer.memory)[: 2 * size] == bytes(buffer.memory)[4 * size :]


@pytest.mark.parametrize("keep", ["array", "tensor", "slice"])
def test_whoever_looks_at_foreign_memory_keeps_its_owner(keep: str) -> None:
    """Be it through a view of a view."""
    buffer = Buffer(64)
    watched = weakref.ref(buffer)
    view = view_address(buffer.address, (8, 8), "float8_e4m3fn", owner=buffer)
    kept: Any = view.array
    if keep == "tensor":
        kept = to_torch(view)
    elif keep == "slice":
        kept = to_numpy(to_torch(view)[2:]).array[1]
    del buffer, view
    gc.collect()
    assert watched() is not None
    del kept
    gc.collect()
    assert watched() is None


def test_a_null_pointer_is_refused() -> None:
    """Nothing lies at 0."""
    with pytest.raises(ConfigError, match="address is 0"):
        view_address(0, (1,), "int8", owner=None)


def test_on_the_cpu_the_view_is_numpys() -> None:
    """The caller need not know where a pool lies; no stream is asked for."""
    tensor = torch.zeros(3, dtype=torch.bfloat16)
    with same_stream(tensor):
        view = view_of(tensor)
    assert isinstance(view.array, np.ndarray)
    assert address_of(view.array) == tensor.data_ptr()


def test_what_lies_elsewhere_is_refused() -> None:
    """Each library with the name of the place that it cannot see."""
    with pytest.raises(ConfigError, match="lies on cpu, which CuPy"):
        to_cupy(torch.zeros(1))
    with pytest.raises(ConfigError, match="lies on meta, which numpy"):
        to_numpy(torch.zeros(1, device="meta"))


class OnDevice:
    """The part of a tensor that is read before a device is touched."""

    device = torch.device("cuda:0")


@pytest.mark.parametrize("exchange", [to_cupy, lambda t: same_stream(t).__enter__()])
def test_per_thread_streams_are_refused(
    monkeypatch: pytest.MonkeyPatch, exchange: Any
) -> None:
    """Else torch raises in the midst of an exchange, with no hint of the cause."""
    monkeypatch.setenv(PER_THREAD_STREAMS, "1")
    with pytest.raises(ConfigError, match=f"{PER_THREAD_STREAMS} is '1', must be 0"):
        exchange(OnDevice())
