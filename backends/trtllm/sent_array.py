"""Arrays that the host fills and a device reads, step after step.

A copy from pinned memory is made later than it is asked for, while the host goes on:
what it reads must stay until it is over. So whoever fills such an array goes through
``SentArray``, which waits for its own copies first, and for nothing else.

Source: PyTorch's CUDA semantics (https://docs.pytorch.org/docs/stable/notes/cuda.html)
for pinned buffers.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hybrid.bridge.trtllm_offsets import HostAllocator, zeros_on_host

Place = slice | tuple[int, slice]
"""A run of an array: rows, or a part of one row."""


class Copier(Protocol):
    """Brings numbers to a device, at once or later, in order."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Begin a copy; both are contiguous."""

    def mark(self) -> None:
        """Remember what was begun so far."""

    def wait(self) -> None:
        """Return when all that ``mark`` remembered is done."""


class ImmediateCopier:
    """Where host and device are one: a copy is over when it returns."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy."""
        target.copy_(source)

    def mark(self) -> None:
        """Nothing is under way."""

    def wait(self) -> None:
        """Nothing is under way."""


class StreamCopier:
    """Copies on the current CUDA stream, from pinned memory."""

    def __init__(self) -> None:
        # Made on the GPU that is current when it is first recorded.
        self._copied: Final = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue, and go on."""
        target.copy_(source, non_blocking=True)

    def mark(self) -> None:
        """Put an event behind the copies."""
        self._copied.record()

    def wait(self) -> None:
        """Wait for the event; for none, if none was recorded."""
        self._copied.synchronize()


def copier_for(device: torch.device) -> Copier:
    """Choose how numbers get to ``device``."""
    return StreamCopier() if device.type == "cuda" else ImmediateCopier()


def host_allocator(device: torch.device) -> HostAllocator:
    """Choose where tables lie that ``device`` will copy: pinned if it is a GPU."""
    return _pinned_zeros if device.type == "cuda" else zeros_on_host


class SentArray:
    """A host array, its twin on a device, and no race between them."""

    def __init__(self, host: NDArray[np.integer], device: torch.device) -> None:
        """Make the twin.

        Args:
            host: from ``host_allocator(device)``, C-contiguous; from now on written
                inside ``rewrite`` only.
            device: of the twin.
        """
        self._host: Final = host
        self._source: Final = torch.from_numpy(host)  # the same memory
        self._copier: Final = copier_for(device)
        self.device: Final = self._source.to(device, copy=True)
        """The twin, of the host array's shape and dtype; never moved."""

    @classmethod
    def zeros(
        cls, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> "SentArray":
        """Make the host array, too; for ``put``."""
        is_pinned = device.type == "cuda"
        host = torch.zeros(shape, dtype=dtype, pin_memory=is_pinned)
        return cls(host.numpy(), device)

    def put(self, *rows: NDArray[np.integer]) -> tuple[torch.Tensor, ...]:
        """Write and send the first numbers of the first rows of ``[R, size]``.

        Args:
            rows: ``[n]`` each, of any lengths up to ``size``.

        Returns:
            For each the view of the twin, always at the same address.
        """
        self._copier.wait()
        places = [(index, slice(0, len(row))) for index, row in enumerate(rows)]
        for place, row in zip(places, rows, strict=True):
            self._host[place] = row
        self._send(places)
        return tuple(self.device[place] for place in places)

    def rewrite(self, write: Callable[[], list[int]]) -> None:
        """Have rows (entries of the first axis) rewritten, and send those.

        Neighbours are one copy. Rows between are not sent: a row is as long as the
        longest sequence may be, and in a step of many few grow.

        Args:
            write: writes the host array; returns the rows, ascending.
        """
        self._copier.wait()
        self._send(_runs(write()))

    def at_least(self, size: int) -> "SentArray":
        """Give this ``[R, size]`` or a larger one, where nobody keeps addresses."""
        num_rows, has = self._host.shape
        if size <= has:
            return self
        self._copier.wait()  # before its memory goes
        larger = 1 << (size - 1).bit_length()
        return self.zeros((num_rows, larger), self.device.dtype, self.device.device)

    def _send(self, places: Iterable[Place]) -> None:
        for place in places:
            self._copier.copy(self.device[place], self._source[place])
        self._copier.mark()


def _pinned_zeros(shape: tuple[int, ...]) -> NDArray[np.int32]:
    array: NDArray[np.int32] = torch.zeros(
        shape, dtype=torch.int32, pin_memory=True
    ).numpy()
    return array


def _runs(rows: list[int]) -> list[slice]:
    """Group ascending rows, so that neighbours are one copy."""
    runs: list[slice] = []
    for row in rows:
        if runs and runs[-1].stop == row:
            runs[-1] = slice(runs[-1].start, row + 1)
        else:
            runs.append(slice(row, row + 1))
    return runs
