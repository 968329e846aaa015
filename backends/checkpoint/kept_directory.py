"""Directories made once and kept: written beside their place, then renamed.

So a crash or a loss of power leaves nothing behind that looks whole, and two processes
that make the same directory at once do not meet.
"""

import contextlib
import fcntl
import os
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

    What is replaced is moved aside first and comes back if the new one cannot take its
    place. A process that is killed between these two renames leaves no ``target``: the
    old directory lies in a ``.broken-*`` beside it, the new one in a ``.converting-*``.
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
        _flush(working)
        working.chmod(0o755)  # mkdtemp's is private; caches are shared
        with _locked(target.parent):
            _move_into_place(working, target, is_whole)
        _flush_names(target.parent)


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


def _flush(directory: Path) -> None:
    """Write what it holds to the disk: a rename may get there before the bytes do."""
    for folder, _, files in os.walk(directory):
        for name in files:
            with Path(folder, name).open("rb") as file:
                os.fsync(file.fileno())
        _flush_names(Path(folder))


def _flush_names(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # not every file system can
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep other processes, and threads, from moving anything in here."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # network file systems lock no directory
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # and with it the lock


def _move_into_place(
    working: Path, target: Path, is_whole: Callable[[Path], bool]
) -> None:
    if target.exists():
        if not is_whole(target):
            _replace(target, working)
        return  # else another process was first; its result is as good
    try:
        working.rename(target)
    except OSError:
        # Where there are no locks, another may have come between.
        if not is_whole(target):
            raise


def _replace(target: Path, working: Path) -> None:
    aside = Path(tempfile.mkdtemp(prefix=_BROKEN, dir=target.parent))
    old = aside / target.name
    try:
        target.rename(old)
        working.rename(target)
    finally:
        # If it cannot come back, it stays where it is.
        if old.exists() and not target.exists():
            old.rename(target)
        shutil.rmtree(aside, ignore_errors=True)
