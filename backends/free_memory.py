"""How much memory the machine would give now."""

from pathlib import Path
from typing import Final

import psutil

CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
CGROUP_USE: Final = Path("/sys/fs/cgroup/memory.current")


def free_host_memory_bytes() -> int:
    """Memory that an allocation could take now: of the machine and of the cgroup."""
    free = int(psutil.virtual_memory().available)
    if CGROUP_LIMIT.is_file() and CGROUP_USE.is_file():
        limit = CGROUP_LIMIT.read_text("ascii").strip()
        if limit.isdecimal():
            free = min(free, max(0, int(limit) - int(CGROUP_USE.read_text("ascii"))))
    return free
