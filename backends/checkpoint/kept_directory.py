"""Directories made once and kept: written beside their place, then renamed.

So a crash leaves nothing behind that looks whole, and two processes that make the same
directory at once do not meet.
"""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_WORKING: Final = ".converting-"
_BROKEN: Final = ".broken-"
_LEFTOVER_AGE_S: Final = 24 * 3600


def keep_directory(
    target: Path, write: Callable[[Path], object], is_whole: Callable[[Path], bool]
) -> None:
    """Make ``target`` unless another process was faster; replace a broken one.

    What killed processes left in ``target``'s parent is removed after a day.

    Args:
        target: the directory; its parent is made if missing.
        write: fills the empty directory that it is given.
        is_whole: whether a directory holds all that it should.

    Raises:
        OSError: it cannot be written here.
        Exception: whatever ``write`` raises; nothing is kept.
    """
    with _working_directory(target.parent) as working:
        write(working)
        _move_into_place(working, target, is_whole)


@contextlib.contextmanager
def _working_directory(parent: Path) -> Iterator[Path]:
    """A directory beside the kept ones, gone at the end unless renamed."""
    parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(parent)
    working = Path(tempfile.mkdtemp(prefix=_WORKING, dir=parent))
    try:
        yield working
    finally:
        shutil.rmtree(working, ignore_errors=True)


def _remove_leftovers(parent: Path) -> None:
    oldest = time.time() - _LEFTOVER_AGE_S
    for prefix in (_WORKING, _BROKEN):
        for path in parent.glob(f"{prefix}*"):
            with contextlib.suppress(OSError):  # another process may do the same
                if path.stat().st_mtime < oldest:
                    shutil.rmtree(path)


def _move_into_place(
    working: Path, target: Path, is_whole: Callable[[Path], bool]
) -> None:
    if target.exists() and not is_whole(target):
        broken = Path(tempfile.mkdtemp(prefix=_BROKEN, dir=target.parent))
        target.rename(broken / target.name)
        shutil.rmtree(broken, ignore_errors=True)
    try:
        working.chmod(0o755)  # mkdtemp's is private; caches are shared
        working.rename(target)
    except OSError:
        # Another process was first; its result is as good.
        if not is_whole(target):
            raise
