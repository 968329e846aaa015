"""Becomes the gateway: the child's side of ``gateway.py``.

    python -m hybrid.serving.gateway_process PARENT_PID < arguments.json

The arguments come by standard input, for tokens are among them and every user of a
machine can read its command lines.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
"""Linux, ``prctl(2)``."""


def main() -> None:
    """Run ``smg launch`` in this process, which ends with its parent."""
    _die_with(int(sys.argv[1]))
    arguments = json.load(sys.stdin)
    # Only once it cannot be orphaned.
    from smg.cli import main as run_smg  # type: ignore[import-untyped] # noqa: PLC0415

    run_smg(["launch", *arguments])


def _die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        # It ended before the kernel was told.
        sys.exit(1)


if __name__ == "__main__":
    main()
