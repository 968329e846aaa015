"""What is asked of CuPy and torch before a device's memory is exchanged.

Neither runs here: CuPy is stood in for by what it would be asked, torch's streams by
their numbers. tests/gpu has the same on a device.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from hybrid.bridge.zero_copy import (
    ArrayView,
    same_stream,
    to_cupy,
    to_torch,
    view_address,
)
from hybrid.scheduler import ConfigError

TORCH_STREAM = 0x70


class DeviceTensor(torch.Tensor):
    """A tensor that says it lies on the second GPU."""

    device = torch.device("cuda:1")  # type: ignore[assignment]


class Stream:
    """One of torch's, as other libraries take it."""

    cuda_stream = TORCH_STREAM

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.cuda_stream)


class StandInCupy(ModuleType):
    """Keeps current device and stream, and hands back what it is given."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.device, self.stream = 0, 0
        self.cuda = SimpleNamespace(
            Device=lambda number: self._current("device", number),
            Stream=SimpleNamespace(from_external=self._from_external),
            get_current_stream=lambda: SimpleNamespace(ptr=self.stream),
            UnownedMemory=lambda *given: given,
            MemoryPointer=lambda memory, offset: (memory, offset),
        )
        self.ndarray = lambda *given: given
        self.from_dlpack = lambda exporter: (self.device, exporter)

    def _from_external(self, stream: Stream) -> Any:
        return self._current("stream", stream.__cuda_stream__()[1])

    @contextmanager
    def _current(self, what: str, number: int) -> Iterator[None]:
        before = getattr(self, what)
        setattr(self, what, number)
        yield
        setattr(self, what, before)


@pytest.fixture(autouse=True)
def cupy(monkeypatch: pytest.MonkeyPatch) -> StandInCupy:
    """CuPy's stand-in, and torch's current stream."""
    standin = StandInCupy()
    monkeypatch.setitem(sys.modules, "cupy", standin)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return standin


def test_an_exchange_happens_on_the_tensors_device_and_torchs_stream(
    cupy: StandInCupy,
) -> None:
    """CuPy's own are back afterwards; the dtype that it lacks crosses as integers."""
    tensor = torch.zeros(3, dtype=torch.bfloat16).as_subclass(DeviceTensor)
    with same_stream(tensor):
        assert (cupy.device, cupy.stream) == (1, TORCH_STREAM)
        view = to_cupy(tensor)
    assert (cupy.device, cupy.stream) == (0, 0)
    device, exported = view.array
    assert device == 1
    assert exported.dtype == torch.uint16
    assert exported.data_ptr() == tensor.data_ptr()
    assert view.dtype == "bfloat16"


def test_two_streams_are_refused_both_ways() -> None:
    """Both are named, and what to do."""
    tensor = torch.zeros(3).as_subclass(DeviceTensor)
    array = SimpleNamespace(device=SimpleNamespace(id=1))
    message = "CuPy's current stream is 0x0, torch's is 0x70; exchange within"
    with pytest.raises(ConfigError, match=message):
        to_cupy(tensor)
    with pytest.raises(ConfigError, match=message):
        to_torch(ArrayView(array, "float32"))


def test_an_exchange_within_a_capture_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No graph can hold the wait for another stream."""
    tensor = torch.zeros(3).as_subclass(DeviceTensor)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with same_stream(tensor), pytest.raises(ConfigError, match="being captured"):
        to_cupy(tensor)


def test_memory_of_a_device_is_described_in_full() -> None:
    """Address, bytes, owner and device, as CuPy takes them."""
    owner = object()
    view = view_address(4096, (2, 3), "bfloat16", owner=owner, device_id=1)
    shape, dtype, (memory, offset) = view.array
    assert (shape, dtype, offset) == ((2, 3), "uint16", 0)
    assert memory == (4096, 12, owner, 1)
