"""The control groups that this process is in: where Linux says what a container may."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Where to look; missing files are groups without a limit."""

    membership: Path = Path("/proc/self/cgroup")
    """A line a hierarchy: number, controllers (none in version 2), path."""
    mounted: Path = Path("/sys/fs/cgroup")
    """The root that is seen from here: of a container often its own group, by which
    paths then need not begin."""

    def unified(self) -> Iterator[Path]:
        """Directories of version 2: the own group's and all above, as far as seen."""
        return self._upwards("", self.mounted)

    def cpu(self) -> Iterator[Path]:
        """Directories of version 1's controller ``cpu``, likewise."""
        return self._upwards("cpu", self.mounted / "cpu")

    def _upwards(self, controller: str, root: Path) -> Iterator[Path]:
        for line in read_text(self.membership).splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                group = Path(path.lstrip("/"))
                # Of a group outside of what is seen only the root is.
                names = () if ".." in group.parts else (group, *group.parents)
                yield from (root / name for name in names if name != Path())
                yield root


CGROUPS: Final = Cgroups()


def read_text(file: Path) -> str:
    """Read a file of the kernel's; empty where there is none, or not for us."""
    try:
        return file.read_text("ascii").strip()
    except OSError:
        return ""
