"""Where activations lie: those that live at different times share memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from .abi import ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When a buffer holds something, in ops of the plan, both ends included."""

    size_bytes: int
    first: int
    last: int

    def meets(self, other: "Lifetime") -> bool:
        """Whether both hold something at once."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A place for each buffer."""

    offsets: tuple[int, ...]
    """Bytes into the arena, multiples of 64."""
    arena_bytes: int
    unshared_bytes: int
    """What the arena would be if nothing were shared."""


def plan_memory(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Place the largest first, each at the lowest gap among those it lives beside."""
    sizes = [
        -(-buffer.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        for buffer in lifetimes
    ]
    offsets: dict[int, int] = {}
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        taken = sorted(
            (offset, offset + sizes[other])
            for other, offset in offsets.items()
            if lifetimes[other].meets(lifetimes[index])
        )
        place = 0
        for start, end in taken:
            if start - place >= sizes[index]:
                break
            place = max(place, end)
        offsets[index] = place
    return MemoryPlan(
        offsets=tuple(offsets[index] for index in range(len(sizes))),
        arena_bytes=max((offsets[i] + size for i, size in enumerate(sizes)), default=0),
        unshared_bytes=sum(sizes),
    )
