"""How many CPUs this process may keep busy."""

import os
from collections.abc import Collection, Iterator
from math import ceil
from pathlib import Path
from typing import Final

from .cgroups import CGROUPS, Cgroups, read_text

CPUS: Final = Path("/sys/devices/system/cpu")
"""What Linux tells of each CPU."""


def num_usable_cpus(cgroups: Cgroups = CGROUPS, cpus: Path = CPUS) -> int:
    """Count the cores of the affinity, but no more than a container's share of time.

    Two CPUs that are threads of one core multiply no faster than one: they count once.
    Threads beyond the share are stopped in turn, each while others wait for it; part of
    a CPU counts as one.
    """
    num_cores = len({_core(cpus, number) for number in _allowed_cpus()})
    return max(1, min([num_cores, *map(ceil, _shares(cgroups))]))


def _allowed_cpus() -> Collection[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)  # macOS


def _core(cpus: Path, number: int) -> str:
    """Name a core by the CPUs that are its threads, such as ``0,64``."""
    siblings = cpus / f"cpu{number}" / "topology" / "thread_siblings_list"
    return read_text(siblings) or str(number)


def _shares(cgroups: Cgroups) -> Iterator[float]:
    """CPU seconds a second that each group above grants; the least one holds."""
    for group in cgroups.unified():
        quota, _, period = read_text(group / "cpu.max").partition(" ")
        yield from _share(quota, period)
    for group in cgroups.cpu():
        quota = read_text(group / "cpu.cfs_quota_us")
        yield from _share(quota, read_text(group / "cpu.cfs_period_us"))


def _share(quota: str, period: str) -> Iterator[float]:
    """None where the quota is ``max`` or -1."""
    if quota.isdecimal() and period.isdecimal() and int(period):
        yield int(quota) / int(period)
