"""Progress bars on stderr, at a terminal only."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    # At run time it would bring numpy along.
    from hybrid.backends.interface import ProgressCallback


_BYTES_FROM: Final = 1_000_000
"""A stage of so many units counts bytes: no model has a million shards or tensors."""


@contextmanager
def show_progress() -> Iterator["ProgressCallback | None"]:
    """Give a callback that draws a bar per stage; ``None`` where stderr is no terminal.

    The bars vanish at the end, so that an answer stands alone.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - only where bars are drawn
    from rich.filesize import decimal  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )

    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    tasks: dict[str, TaskID] = {}

    def report(stage: str, done: int, total: int) -> None:
        amount = f"{done}/{total}"
        if total >= _BYTES_FROM:
            amount = f"{decimal(done)}/{decimal(total)}"
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage, total=total, amount=amount)
        bars.update(tasks[stage], completed=done, total=total, amount=amount)

    with bars:
        yield report
