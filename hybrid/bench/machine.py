"""What a benchmark ran on, as far as it decides the figures."""

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from hybrid._version import __version__
from hybrid.backends.usable_cpus import num_usable_cpus


@dataclass(frozen=True, slots=True)
class Machine:
    """This one, now."""

    processor: str
    num_cpus: int
    """Cores that this process may keep busy."""
    memory_bytes: int
    load_average: float
    """Of the last minute, before anything was measured here or by others."""
    platform: str
    python: str
    hybrid: str
    """Its version."""

    @classmethod
    def here(cls) -> Self:
        """Look."""
        return cls(
            processor=_processor(),
            num_cpus=num_usable_cpus(),
            memory_bytes=int(psutil.virtual_memory().total),
            load_average=os.getloadavg()[0],
            platform=platform.platform(),
            python=platform.python_version(),
            hybrid=__version__,
        )


def _processor() -> str:
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
