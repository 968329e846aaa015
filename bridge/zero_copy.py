"""One memory under three libraries: torch, CuPy and numpy see it without a copy.

What neither CuPy nor numpy has (bfloat16, float8) crosses as unsigned integers of the
same size, for as itself it is refused, or misread as float16; the true dtype goes
beside. An array keeps the owner of its memory alive.

Streams: an exchange orders torch's and CuPy's current streams once, at that moment, and
never again. So both must be one stream, at the exchange and for as long as both work on
the memory: exchange once, at the start, outside any graph capture, and let CuPy work
within ``same_stream``. What can be checked of this is: other streams are refused.

torch and CuPy are imported by the functions that need them alone; on a device CuPy 14
and torch 2.10 are the oldest that can name each other's streams.

Source: CuPy 14.2 and torch 2.13, their DLPack and ``__cuda_array_interface__``.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hybrid.scheduler.errors import ConfigError

if TYPE_CHECKING:
    import torch

INTEGER_VIEWS: Final = {
    "bfloat16": "uint16",
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
}
"""By torch's name of a dtype, as what it crosses; all others cross as themselves."""
PER_THREAD_STREAMS: Final = "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"


@dataclass(frozen=True, slots=True)
class ArrayView:
    """Memory as an array, and what its elements are."""

    array: Any
    """numpy's in host memory, CuPy's on a device; integers by ``INTEGER_VIEWS``."""
    dtype: str
    """Of the elements, by torch's name."""


def view_of(tensor: "torch.Tensor") -> ArrayView:
    """The memory of a tensor, by the library for where it lies.

    Raises:
        ConfigError: see ``to_cupy``.
    """
    return to_numpy(tensor) if tensor.device.type == "cpu" else to_cupy(tensor)


def to_numpy(tensor: "torch.Tensor") -> ArrayView:
    """The memory of a tensor on the CPU, pinned or not; any strides.

    Raises:
        ConfigError: it lies on a device.
    """
    if tensor.device.type != "cpu":
        raise ConfigError(
            f"zero copy: the tensor lies on {tensor.device}, which numpy cannot see"
        )
    return ArrayView(_as_integers(tensor).numpy(), _dtype_name(tensor))


def to_cupy(tensor: "torch.Tensor") -> ArrayView:
    """The memory of a tensor on a CUDA device; any strides.

    Raises:
        ConfigError: it lies elsewhere; torch's and CuPy's streams are not one; a graph
            is being captured.
    """
    if tensor.device.type != "cuda":
        raise ConfigError(
            f"zero copy: the tensor lies on {tensor.device}, which CuPy cannot see"
        )
    _check_streams(tensor.device.index)
    import cupy  # noqa: PLC0415 - where there is a device only

    with cupy.cuda.Device(tensor.device.index):
        array = cupy.from_dlpack(_as_integers(tensor))
    return ArrayView(array, _dtype_name(tensor))


def to_torch(view: ArrayView) -> "torch.Tensor":
    """A view's memory as a tensor of its true dtype.

    Raises:
        ConfigError: the array is read-only, which torch would not heed; for CuPy's see
            ``to_cupy``.
    """
    import torch  # noqa: PLC0415 - the room does without it

    array = view.array
    if not isinstance(array, np.ndarray):
        _check_streams(array.device.id)
        tensor = torch.utils.dlpack.from_dlpack(array)
    elif array.flags.writeable:
        tensor = torch.from_numpy(array)
    else:
        raise ConfigError("zero copy: the array is read-only, a tensor never is")
    dtype: torch.dtype = getattr(torch, view.dtype)
    return tensor.view(dtype)


def view_address(
    address: int,
    shape: tuple[int, ...],
    dtype: str,
    *,
    owner: object,
    device_id: int | None = None,
) -> ArrayView:
    """Memory that is known by its address, C-contiguous.

    Args:
        address: of the first byte.
        shape: in elements.
        dtype: of the elements, by torch's name.
        owner: what the memory is freed with; the array keeps it alive.
        device_id: number of the CUDA device; ``None``: host memory.

    Raises:
        ConfigError: the address is 0.
    """
    if not address:
        raise ConfigError("zero copy: the address is 0")
    plain = np.dtype(INTEGER_VIEWS.get(dtype, dtype))
    if device_id is None:
        memory = _HostMemory(address, shape, plain, owner)
        return ArrayView(np.asarray(memory), dtype)
    import cupy  # noqa: PLC0415 - where there is a device only

    num_bytes = prod(shape) * plain.itemsize
    memory = cupy.cuda.UnownedMemory(address, num_bytes, owner, device_id)
    pointer = cupy.cuda.MemoryPointer(memory, 0)
    return ArrayView(cupy.ndarray(shape, plain, pointer), dtype)


def address_of(array: Any) -> int:
    """Where the first element of a tensor, a CuPy or a numpy array lies."""
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    interface = getattr(array, "__cuda_array_interface__", None)
    return int((interface or array.__array_interface__)["data"][0])


@contextmanager
def same_stream(tensor: "torch.Tensor") -> Iterator[None]:
    """Put CuPy's work on torch's current stream of a tensor's device.

    Neither then overtakes the other. Memory of the host has no stream: nothing is done.

    Raises:
        ConfigError: CuPy was told to use streams that torch cannot name.
    """
    if tensor.device.type == "cpu":
        yield
        return
    _refuse_per_thread_streams()
    import cupy  # noqa: PLC0415 - where there is a device only
    import torch  # noqa: PLC0415 - the room does without it

    stream = torch.cuda.current_stream(tensor.device)
    with (
        cupy.cuda.Device(tensor.device.index),
        cupy.cuda.Stream.from_external(stream),
    ):
        yield


class _HostMemory:
    """Foreign memory as numpy takes it: an array of it keeps this, and so the owner."""

    def __init__(
        self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object
    ) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": shape,
            "typestr": dtype.str,
        }


def _as_integers(tensor: "torch.Tensor") -> "torch.Tensor":
    import torch  # noqa: PLC0415 - the room does without it

    name = _dtype_name(tensor)
    dtype: torch.dtype = getattr(torch, INTEGER_VIEWS.get(name, name))
    # A parameter shares its memory too, and is otherwise refused.
    return tensor.detach().view(dtype)


def _dtype_name(tensor: "torch.Tensor") -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _refuse_per_thread_streams() -> None:
    if os.environ.get(PER_THREAD_STREAMS, "0") != "0":
        raise ConfigError(
            f"zero copy: {PER_THREAD_STREAMS} is {os.environ[PER_THREAD_STREAMS]!r}, "
            "must be 0 or unset: torch refuses memory of per-thread streams"
        )


def _check_streams(device_id: int) -> None:
    _refuse_per_thread_streams()
    import cupy  # noqa: PLC0415 - where there is a device only
    import torch  # noqa: PLC0415 - the room does without it

    if torch.cuda.is_current_stream_capturing():
        raise ConfigError("zero copy: a graph is being captured; exchange before it")
    theirs = torch.cuda.current_stream(device_id).cuda_stream
    with cupy.cuda.Device(device_id):
        ours = cupy.cuda.get_current_stream().ptr
    if ours != theirs:
        raise ConfigError(
            f"zero copy: CuPy's current stream is {ours:#x}, torch's is {theirs:#x}; "
            "exchange within same_stream"
        )
