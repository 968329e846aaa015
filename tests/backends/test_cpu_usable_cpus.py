"""The kernels' threads are as many as a container may keep busy."""

import os
from pathlib import Path

import pytest

from hybrid.backends.cpu.usable_cpus import num_usable_cpus

ALLOWED = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max 100000\n", ALLOWED),
        ("100000 100000\n", 1),
        ("50000 100000\n", 1),
        (f"{ALLOWED * 100_000 + 1} 100000\n", ALLOWED),
        ("1000000000 100000\n", ALLOWED),
        ("100000\n", ALLOWED),
        ("100000 0\n", ALLOWED),
        ("\n", ALLOWED),
    ],
)
def test_a_containers_share_is_an_upper_bound(
    tmp_path: Path, text: str, expected: int
) -> None:
    """Parts of a CPU count as one; what cannot be read bounds nothing."""
    file = tmp_path / "cpu.max"
    file.write_text(text)
    assert num_usable_cpus(file) == expected


def test_without_a_share_the_affinity_counts(tmp_path: Path) -> None:
    """As ``taskset`` sets it."""
    assert num_usable_cpus(tmp_path / "cpu.max") == ALLOWED
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert num_usable_cpus(tmp_path / "cpu.max") == 1
    finally:
        os.sched_setaffinity(0, before)
