"""Memory whose address others hold: never moved, and not freed before they are done.

Kernels, captured graphs and pointer tables know an address and hold no reference. torch
moves a tensor's memory at ``resize_`` and frees it with the last reference, silently.
"""

from typing import Any, Final, Protocol
from weakref import WeakSet

from hybrid.scheduler.errors import ExecutorFailed


class Tensor(Protocol):
    """What is asked of torch's."""

    def data_ptr(self) -> int:
        """Give the address of the first element."""
        ...

    def untyped_storage(self) -> Any:
        """Give the memory behind, with its size."""
        ...


class LentMemory:
    """A tensor that lends its address.

    ::

        memory = LentMemory("KV pool", pool.memory)
        lease = memory.lend("attention")  # kept beside whatever keeps the address
        lease.check()  # at every use: the same address as ever, or an error
        memory.release()  # an error until every lease is ended or gone
    """

    def __init__(self, name: str, tensor: Tensor) -> None:
        self.name: Final = name
        self._tensor: Tensor | None = tensor
        self._place: Final = _place_of(tensor)
        self._leases: Final[WeakSet[Lease]] = WeakSet()

    @property
    def address(self) -> int:
        """Of the first element; the same at every call.

        Raises:
            ExecutorFailed: the memory was moved, resized or released.
        """
        if self._tensor is None:
            raise ExecutorFailed(f"{self.name}: its memory was released")
        place = _place_of(self._tensor)
        if place != self._place:
            (before, had), (now, has) = self._place, place
            raise ExecutorFailed(
                f"{self.name}: its memory was {had:,} bytes at {before:#x} and is "
                f"{has:,} bytes at {now:#x}; pointers to it are out"
            )
        return place[0]

    def lend(self, borrower: str) -> "Lease":
        """Give the address out.

        Args:
            borrower: who keeps it, for errors.
        """
        lease = Lease(self, borrower)
        self._leases.add(lease)
        return lease

    def release(self) -> None:
        """Let go of the tensor; twice is no error.

        Raises:
            ExecutorFailed: a lease has not ended.
        """
        borrowers = sorted(lease.borrower for lease in self._leases)
        if borrowers:
            raise ExecutorFailed(
                f"{self.name}: its memory cannot be released, pointers to it are held "
                f"by {', '.join(borrowers)}"
            )
        self._tensor = None

    def end(self, lease: "Lease") -> None:
        """Take a lease back; twice is no error."""
        self._leases.discard(lease)


class Lease:
    """The right to use an address, until it ends or nobody holds it any more.

    Keeps the memory alive.
    """

    def __init__(self, memory: LentMemory, borrower: str) -> None:
        self.borrower: Final = borrower
        self._memory: LentMemory | None = memory

    @property
    def address(self) -> int:
        """That of the memory.

        Raises:
            ExecutorFailed: see ``LentMemory.address``; or the lease has ended.
        """
        if self._memory is None:
            raise ExecutorFailed(f"{self.borrower}: its lease of memory has ended")
        return self._memory.address

    def check(self) -> None:
        """Make sure, before a kernel follows it, that the address still holds.

        Raises:
            ExecutorFailed: see ``address``.
        """
        self.address  # noqa: B018 - reading it is the check

    def end(self) -> None:
        """Give the address back; twice is no error."""
        if self._memory is not None:
            self._memory.end(self)
            self._memory = None


def _place_of(tensor: Tensor) -> tuple[int, int]:
    """Address, and bytes of the memory behind: a shrunken one may keep its address."""
    return tensor.data_ptr(), tensor.untyped_storage().nbytes()
