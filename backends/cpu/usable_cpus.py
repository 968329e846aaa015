"""How many CPUs this process may keep busy."""

import os
from math import ceil
from pathlib import Path
from typing import Final

CGROUP_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of CPU time in each period, or ``max``, and the period."""


def num_usable_cpus(quota_file: Path = CGROUP_QUOTA) -> int:
    """Count CPUs: of the affinity, but no more than a container's share of time.

    Threads beyond that share are stopped in turn, each while others wait for it.
    """
    allowed = len(os.sched_getaffinity(0))
    if not quota_file.is_file():
        return allowed
    quota, _, period = quota_file.read_text("ascii").strip().partition(" ")
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return allowed
    return max(1, min(allowed, ceil(int(quota) / int(period))))
