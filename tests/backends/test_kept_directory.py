"""Directories that are kept are whole, whoever makes or breaks them, and when."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hybrid.backends.checkpoint.kept_directory import keep_directory

NUM_PROCESSES = 3
REPLACE_OFTEN = """
import sys
from pathlib import Path
from hybrid.backends.checkpoint.kept_directory import keep_directory

def write(directory):
    for name in ("a", "b"):
        (directory / name).write_text(name)

for _ in range(100):
    keep_directory(Path(sys.argv[1]), write, lambda _: sys.argv[2] == "whole")
"""


def _write(directory: Path) -> None:
    (directory / "weights").write_text("new")
    (directory / "inner").mkdir()
    (directory / "inner" / "names").write_text("new")


def _old(folder: Path) -> Path:
    target = folder / "kept"
    target.mkdir()
    (target / "weights").write_text("old")
    return target


@pytest.mark.parametrize("found", ["whole", "broken"])
def test_processes_that_make_one_at_once_do_not_meet(
    tmp_path: Path, found: str
) -> None:
    """Nobody fails, be it taken as it is or replaced; nothing else is left."""
    target = tmp_path / "kept"
    command = [sys.executable, "-c", REPLACE_OFTEN, str(target), found]
    processes = [
        subprocess.Popen(command, stderr=subprocess.PIPE)  # noqa: S603 - our own script
        for _ in range(NUM_PROCESSES)
    ]
    failures = [process.communicate(timeout=300)[1] for process in processes]
    assert failures == [b""] * NUM_PROCESSES
    assert list(tmp_path.iterdir()) == [target]
    assert sorted(path.name for path in target.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("fault", [OSError(28, "disk full"), KeyboardInterrupt()])
def test_what_cannot_be_replaced_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    """The old one comes back where the new one cannot take its place."""
    target = _old(tmp_path)
    rename = Path.rename

    def fail_once(path: Path, to: Path) -> Path:
        if to == target and path.name.startswith(".converting-"):
            raise fault
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", fail_once)
    with pytest.raises(type(fault)):
        keep_directory(target, _write, lambda _: False)
    assert list(tmp_path.iterdir()) == [target]
    assert (target / "weights").read_text() == "old"


def test_what_can_neither_be_replaced_nor_come_back_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies beside its place, as after a process that was killed there."""
    target = _old(tmp_path)
    rename = Path.rename

    def fail(path: Path, to: Path) -> Path:
        if to == target:
            raise OSError(5, "gone")
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="gone"):
        keep_directory(target, _write, lambda _: False)
    (aside,) = tmp_path.iterdir()
    assert (aside / "kept" / "weights").read_text() == "old"


def test_bytes_are_on_the_disk_before_the_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file and each directory; else a loss of power leaves files of zeros."""
    target = tmp_path / "kept"
    flushed: set[int] = set()
    fsync, rename = os.fsync, Path.rename

    def note(descriptor: int) -> None:
        flushed.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def check(path: Path, to: Path) -> Path:
        inside = [path, *path.rglob("*")]
        assert len(inside) == 4
        assert {each.stat().st_ino for each in inside} <= flushed
        return rename(path, to)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Path, "rename", check)
    keep_directory(target, _write, lambda _: False)
    assert tmp_path.stat().st_ino in flushed
    assert target.is_dir()
