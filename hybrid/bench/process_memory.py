"""Resident memory of this process, mapped files included, as Linux counts it."""

from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

_STATUS: Final = Path("/proc/self/status")
_RESET: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"
"""Source: Linux, Documentation/filesystems/proc.rst."""


def reset_peak_rss() -> None:
    """Let the next peak begin at what is resident now, where the system can."""
    with suppress(OSError):
        _RESET.write_text(_RESET_PEAK, encoding="ascii")


def peak_rss_bytes() -> int:
    """The most that was resident since the last reset; elsewhere than on Linux: now."""
    with suppress(OSError):
        for line in _STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return int(psutil.Process().memory_info().rss)
