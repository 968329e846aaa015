"""Where packed weights lie while an engine runs: pages of their file, or huge ones.

A step reads all weights. Through small pages the processor waits for where they lie,
too, and few systems give huge ones to the pages of a file.
"""

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .build_options import AUTO

FileReader = Callable[[Path], NDArray[np.uint8]]
"""Gives a file's bytes, read-only."""

HUGE: Final = "huge"
MAPPED: Final = "mapped"
WEIGHT_PAGES: Final = (HUGE, MAPPED)

_SETTING: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def copy_to_huge_pages(file: Path) -> NDArray[np.uint8]:
    """Read all of it into memory of this process, huge pages as far as there are any.

    Raises:
        OSError: it cannot be read, or there is no memory for it.
    """
    with file.open("rb", buffering=0) as opened:
        num_bytes = file.stat().st_size
        memory = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        numbers = np.frombuffer(memory, np.uint8)
        view, done = memoryview(memory), 0
        while count := opened.readinto(view[done:]):
            done += count
    if done != num_bytes:
        raise OSError(f"{file} has {num_bytes:,} bytes, {done:,} could be read")
    numbers.flags.writeable = False
    return numbers


def has_huge_pages() -> bool:
    """Whether the system gives them to who asks (Linux: transparent huge pages)."""
    try:
        return "[never]" not in _SETTING.read_text("ascii")
    except OSError:
        return False


def reader_of(pages: str) -> FileReader | None:
    """Choose by the option's value; ``auto``: huge where there are any.

    Returns:
        ``None``: the file is mapped, so that processes share what they read of it.
    """
    if pages == HUGE or (pages == AUTO and has_huge_pages()):
        return copy_to_huge_pages
    return None
