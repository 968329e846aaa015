"""Threads are as many as there are cores that a container may keep busy."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from hybrid.backends.usable_cpus import num_usable_cpus
from tests.backends.cgroup_stand import make_cgroups

BUSY = 10
"""CPUs that the machine of these tests is said to have."""


@pytest.fixture(autouse=True)
def _ten_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(BUSY)))
    monkeypatch.setattr(os, "cpu_count", lambda: BUSY)


def _count(folder: Path, membership: str, files: Mapping[str, str]) -> int:
    return num_usable_cpus(make_cgroups(folder, membership, files), folder / "cpus")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max 100000\n", BUSY),
        ("100000 100000\n", 1),
        ("50000 100000\n", 1),
        ("250000 100000\n", 3),
        ("1000000000 100000\n", BUSY),
        ("100000\n", BUSY),
        ("100000 0\n", BUSY),
        ("\n", BUSY),
    ],
)
def test_a_containers_share_is_an_upper_bound(
    tmp_path: Path, text: str, expected: int
) -> None:
    """Parts of a CPU count as one; what cannot be read bounds nothing."""
    assert _count(tmp_path, "0::/\n", {"cpu.max": text}) == expected


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "2 1"}, 2),
        ("0::/a/b\n", {"cpu.max": "400000 100000"}, 4),
        ("0::/../b\n", {"cpu.max": "400000 100000", "b/cpu.max": "1 1"}, 4),
        ("0::/a\n", {"b/cpu.max": "1 1"}, BUSY),
        ("", {"cpu.max": "1 1"}, BUSY),
    ],
)
def test_every_group_on_the_way_up_counts(
    tmp_path: Path, membership: str, files: Mapping[str, str], expected: int
) -> None:
    """A service's limit is its slice's, too; groups beside it are of no meaning."""
    assert _count(tmp_path, membership, files) == expected


@pytest.mark.parametrize(
    ("quota", "expected"), [("150000", 2), ("-1", BUSY), ("300000", 3)]
)
@pytest.mark.parametrize("place", ["cpu", "cpu/docker/x"])
def test_version_1_has_its_quota_in_two_files(
    tmp_path: Path, quota: str, expected: int, place: str
) -> None:
    """In a container they lie at the root, under a name that is not seen."""
    membership = "4:memory:/m\n3:cpu,cpuacct:/docker/x\n0::/\n"
    files = {
        f"{place}/cpu.cfs_quota_us": f"{quota}\n",
        f"{place}/cpu.cfs_period_us": "100000\n",
    }
    assert _count(tmp_path, membership, files) == expected


def _make_cores(folder: Path, siblings: Mapping[int, str]) -> Path:
    for number, text in siblings.items():
        topology = folder / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{text}\n")
    return folder


@pytest.mark.parametrize(
    ("allowed", "expected"), [({0, 1, 2, 3, 8, 9}, 4), ({0, 8}, 1), ({0, 9}, 2)]
)
def test_threads_of_one_core_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: set[int], expected: int
) -> None:
    """CPUs of which nothing is told are cores."""
    cores = _make_cores(tmp_path / "cpus", {0: "0,8", 8: "0,8", 1: "1,9", 9: "1,9"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed)
    assert num_usable_cpus(make_cgroups(tmp_path, "", {}), cores) == expected


def test_without_an_affinity_every_cpu_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, which has no such call."""
    monkeypatch.delattr(os, "sched_getaffinity")
    assert _count(tmp_path, "", {}) == BUSY


def test_the_machines_own_files_are_understood() -> None:
    """Whatever runs this test."""
    assert 1 <= num_usable_cpus() <= BUSY
