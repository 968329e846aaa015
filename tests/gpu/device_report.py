"""What a machine can do, in one table, within a few minutes.

python -m tests.gpu.device_report

On a GPU every check has a process of its own: one that hangs, or spoils the device's
state, costs its own row. Ends with 1 if any has failed.
"""

import argparse
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import structlog
import torch

from hybrid.backends.trtllm.probe import IMPLEMENTATIONS
from tests.gpu.attention_checks import LIMITS, check_capture, check_steps
from tests.gpu.device_check import Check, Row, Setting, run_check
from tests.gpu.memory_checks import (
    check_addresses,
    check_kv_scatter,
    check_zero_copy,
)
from tests.gpu.model_checks import (
    BATCHES,
    check_attention,
    check_decoding,
    check_tokens,
)

CHECKS: Final[Mapping[str, Check]] = {
    "zero copy": check_zero_copy,
    "raw addresses": check_addresses,
    "KV scatter": check_kv_scatter,
    "tokens, tiny model": check_tokens,
    "CUDA graphs": check_capture,
    **{
        f"{name}, {dtype}": partial(check_steps, attention=name, kv_dtype=dtype)
        for name in reversed(IMPLEMENTATIONS)
        for dtype in LIMITS
    },
    **{
        f"logits, {name}": partial(check_attention, attention=name)
        for name in reversed(IMPLEMENTATIONS)
    },
    **{
        f"decoding, batch {batch}": partial(check_decoding, batch=batch)
        for batch in BATCHES
    },
}
MAX_CHECK_S: Final = 120
"""Some kernels are compiled at their first use."""


def main(arguments: list[str] | None = None) -> int:
    """Print a row as soon as its check has ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=280, help="for all checks")
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + options.seconds
    _log_less()
    has_failed = False
    print(Row("check", "result", "numbers"), _machine(), flush=True)
    with TemporaryDirectory() as folder:
        for row in report(Path(folder), deadline):
            print(row, flush=True)
            has_failed |= row.has_failed
    return int(has_failed)


def report(folder: Path, deadline: float) -> Iterator[Row]:
    """Run every check that there is time for.

    Args:
        folder: for models.
        deadline: by ``time.monotonic``.
    """
    is_cuda = torch.cuda.is_available()
    setting = Setting("cuda" if is_cuda else "cpu", folder)
    for name, check in CHECKS.items():
        left = min(deadline - time.monotonic(), MAX_CHECK_S)
        if left <= 0:
            yield Row(name, "skipped: no time was left")
        elif is_cuda:
            yield run_apart(name, check, setting, left)
        else:
            yield run_check(name, check, setting)


def run_apart(name: str, check: Check, setting: Setting, timeout_s: float) -> Row:
    """Run a check in a process of its own, ended after ``timeout_s`` at the latest."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_row, args=(name, check, setting, sender))
    process.start()
    # Ours would keep the pipe open after the process has died.
    sender.close()
    try:
        if receiver.poll(timeout_s):
            row: Row = receiver.recv()
            return row
        return Row(name, f"failed: no end after {timeout_s:.0f} s")
    except EOFError:
        process.join()
        return Row(name, f"failed: its process ended with {process.exitcode}")
    finally:
        process.kill()
        process.join()
        receiver.close()


def _send_row(name: str, check: Check, setting: Setting, sender: Connection) -> None:
    _log_less()
    sender.send(run_check(name, check, setting))


def _log_less() -> None:
    """Leave the engines' events out of the table."""
    level = structlog.make_filtering_bound_logger(logging.WARNING)
    structlog.configure(wrapper_class=level)


def _machine() -> str:
    if not torch.cuda.is_available():
        return f"(no CUDA device, torch {torch.__version__})"
    return f"({torch.cuda.get_device_name()}, torch {torch.__version__})"


if __name__ == "__main__":
    sys.exit(main())
