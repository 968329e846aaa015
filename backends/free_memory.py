"""How much memory the machine would give now."""

import psutil

from .cgroups import CGROUPS, read_text


def free_host_memory_bytes() -> int:
    """Memory that an allocation could take now: of the machine and of its cgroups.

    Cached pages of files count as free: of the machine in what it calls available, of a
    cgroup those that were not used of late.
    """
    free = int(psutil.virtual_memory().available)
    for group in CGROUPS.unified():
        limit = read_text(group / "memory.max")
        used = read_text(group / "memory.current")
        if limit.isdecimal() and used.isdecimal():
            stat = read_text(group / "memory.stat")
            free = min(free, int(limit) - int(used) + _inactive_file(stat))
    return max(0, free)


def _inactive_file(stat: str) -> int:
    for line in stat.splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            return int(value)
    return 0
