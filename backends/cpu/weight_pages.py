"""Where packed weights lie while an engine runs: pages of their file, or huge ones.

A step reads all weights. Through small pages the processor waits for where they lie,
too, and few systems give huge ones to the pages of a file.
"""

import mmap
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import structlog
from numpy.typing import NDArray

from hybrid.backends.free_memory import free_host_memory_bytes
from hybrid.scheduler.errors import ConfigError

from .abi import ALIGNMENT_BYTES
from .build_options import AUTO
from .engine_directory import BuiltEngine, PackedWeight
from .weight_packing import round_up

log = structlog.get_logger()

HUGE: Final = "huge"
MAPPED: Final = "mapped"
WEIGHT_PAGES: Final = (HUGE, MAPPED)

_SETTING: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_LEAST_FREE: Final = 2
"""Memory that is free, over what weights take: a file's pages can be taken back."""

_T = TypeVar("_T", bound=np.generic)


def place_weights(engine: BuiltEngine, pages: str) -> BuiltEngine:
    """Leave weights in the pages of their file, or copy them into huge ones.

    Args:
        engine: its weights are mapped.
        pages: ``mapped``; ``huge``: as far as the system has them; ``auto``: huge where
            it has them and memory is no concern.

    Raises:
        ConfigError: ``huge`` is asked for, and there is no memory.
    """
    needed = sum(
        round_up(array.nbytes, ALIGNMENT_BYTES)
        for weight in engine.weights
        for array in (weight.data, weight.scales, weight.bias)
        if array is not None
    ) + sum(round_up(vector.nbytes, ALIGNMENT_BYTES) for vector in engine.vectors)
    if pages == MAPPED or (pages == AUTO and not _is_worth_it(needed)):
        return engine
    try:
        memory = _HugeMemory(needed)
    except OSError as error:
        if pages == AUTO:
            log.warning("cpu.weights_mapped", weight_bytes=needed, why=str(error))
            return engine
        raise ConfigError(
            f"weight_pages is {HUGE}: there is no memory for {needed:,} bytes of "
            f"weights ({error}); use {MAPPED}"
        ) from error
    return replace(
        engine,
        weights=tuple(_copied(weight, memory) for weight in engine.weights),
        vectors=tuple(memory.copy(vector) for vector in engine.vectors),
        is_mapped=False,
    )


def _is_worth_it(num_bytes: int) -> bool:
    try:  # Linux: transparent huge pages
        is_given = "[never]" not in _SETTING.read_text("ascii")
    except OSError:
        return False
    return is_given and _LEAST_FREE * num_bytes <= free_host_memory_bytes()


def _copied(weight: PackedWeight, memory: "_HugeMemory") -> PackedWeight:
    return replace(
        weight,
        data=memory.copy(weight.data),
        scales=None if weight.scales is None else memory.copy(weight.scales),
        bias=None if weight.bias is None else memory.copy(weight.bias),
    )


class _HugeMemory:
    """Private memory that is filled once, array by array.

    Raises:
        OSError: there is none.
    """

    def __init__(self, num_bytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, max(num_bytes, 1), flags)
        advice = getattr(mmap, "MADV_HUGEPAGE", None)  # not on every system
        if advice is not None:
            with suppress(OSError):  # small ones do
                memory.madvise(advice)
        self._bytes: Final[NDArray[np.uint8]] = np.frombuffer(memory, np.uint8)
        self._taken = 0

    def copy(self, array: NDArray[_T]) -> NDArray[_T]:
        """Give a read-only copy, 64-byte aligned."""
        end = self._taken + array.nbytes
        copied: NDArray[Any] = self._bytes[self._taken : end].view(array.dtype)
        copied[...] = array
        copied.flags.writeable = False
        self._taken = round_up(end, ALIGNMENT_BYTES)
        return copied
