"""Control groups in a folder, as Linux shows them."""

from collections.abc import Mapping
from pathlib import Path

from hybrid.backends.cgroups import Cgroups


def make_cgroups(folder: Path, membership: str, files: Mapping[str, str]) -> Cgroups:
    """Write them.

    Args:
        folder: where to.
        membership: what ``/proc/self/cgroup`` says.
        files: by path below ``/sys/fs/cgroup``.
    """
    cgroups = Cgroups(folder / "cgroup", folder / "mounted")
    cgroups.membership.write_text(membership)
    for name, text in files.items():
        file = cgroups.mounted / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return cgroups
