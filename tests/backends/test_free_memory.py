"""Free memory is what a container's group and all above it leave."""

from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from hybrid.backends import free_memory
from tests.backends.cgroup_stand import make_cgroups

MIB = 1 << 20
STAT = f"anon 5\ninactive_anon 7\nactive_file 9\ninactive_file {30 * MIB}\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.max": f"{90 * MIB}\n", "memory.current": f"{50 * MIB}\n"}, 40 * MIB),
        (
            {
                "memory.max": f"{90 * MIB}\n",
                "memory.current": f"{50 * MIB}\n",
                "memory.stat": STAT,
            },
            70 * MIB,
        ),
        (
            {
                "memory.max": "max\n",
                "memory.current": "1\n",
                "a/memory.max": f"{9 * MIB}",
                "a/memory.current": f"{2 * MIB}",
                "a/b/memory.max": f"{8 * MIB}",
                "a/b/memory.current": "0",
            },
            7 * MIB,
        ),
        ({"memory.max": "5\n", "memory.current": "9\n"}, 0),
    ],
)
def test_the_narrowest_group_counts_and_its_idle_file_pages_are_free(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: Mapping[str, str],
    expected: int,
) -> None:
    """Weights that were read and are mapped would else look like memory in use."""
    cgroups = make_cgroups(tmp_path, "0::/a/b\n", files)
    monkeypatch.setattr(free_memory, "CGROUPS", cgroups)
    assert free_memory.free_host_memory_bytes() == expected


@pytest.mark.parametrize(
    "files",
    [{}, {"memory.max": "max\n", "memory.current": "5\n"}, {"memory.max": "5\n"}],
)
def test_without_a_limit_the_machine_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str]
) -> None:
    """What cannot be read limits nothing."""
    cgroups = make_cgroups(tmp_path, "0::/\n", files)
    monkeypatch.setattr(free_memory, "CGROUPS", cgroups)
    total = psutil.virtual_memory().total
    assert total // 100 < free_memory.free_host_memory_bytes() <= total
