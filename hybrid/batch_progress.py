"""The progress bar of a batch: requests done, tokens a second; on a terminal only."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from .outputs import RequestOutput

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class BatchProgress:
    """A context manager; silent unless asked for and stderr is a terminal."""

    def __init__(self, num_requests: int, *, is_shown: bool) -> None:
        self._num_requests: Final = num_requests
        self._is_shown: Final = is_shown and sys.stderr.isatty()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._num_tokens = 0
        self._started_s = 0.0

    def __enter__(self) -> Self:
        self._started_s = time.monotonic()
        if self._is_shown:
            from rich.console import Console  # noqa: PLC0415 - only where it is seen
            from rich.progress import (  # noqa: PLC0415
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
            )

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]:.0f} tokens/s"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self._task = self._progress.add_task(
                "Generating", total=self._num_requests, rate=0.0
            )
            self._progress.start()
        return self

    def advance(self, output: RequestOutput) -> None:
        """Count one finished request."""
        if self._progress is None or self._task is None:
            return
        self._num_tokens += output.metrics.num_output_tokens
        elapsed_s = max(time.monotonic() - self._started_s, 1e-9)
        self._progress.update(self._task, advance=1, rate=self._num_tokens / elapsed_s)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
