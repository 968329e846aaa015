"""Ends a wait that takes too long, for a task that waits again and again.

``asyncio.timeout`` sets a timer for every wait, which costs a good part of what a
message does. Here one timer goes on from wait to wait:

    waits:    1 2 3 ... 40 ---------------------- too long
    timer:    set at 1 ----- due: set on, for 40 ------- due: cancel
"""

import asyncio
from types import TracebackType
from typing import Final, Self


class StallWatch:
    """A context around each wait; one at a time, whatever task it is of."""

    def __init__(self, timeout_s: float) -> None:
        """Watch nothing yet.

        Args:
            timeout_s: most that one wait may take.
        """
        self._timeout_s: Final = timeout_s
        self._loop: Final = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        """The one that waits; ``None``: none does."""
        self._num_cancels = 0
        """Of that task, before this watch had part in it."""
        self._due_s = 0.0
        self._is_over = False
        """Whether the wait under way has been ended."""

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None, "callbacks do not wait"
        self._num_cancels = self._task.cancelling()
        self._due_s = self._loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = self._loop.call_at(self._due_s, self._look)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End a wait.

        Raises:
            TimeoutError: it took too long, and nobody else has cancelled the task.
        """
        task, self._task = self._task, None
        assert task is not None
        if self._is_over:
            self._is_over = False
            is_ours = task.uncancel() <= self._num_cancels
            if is_ours and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def expire(self) -> None:
        """End the wait under way, if there is one."""
        if self._task is not None and not self._is_over:
            self._is_over = True
            self._task.cancel()

    def close(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._task is None:
            return  # The next wait sets it again.
        if self._loop.time() < self._due_s:
            self._timer = self._loop.call_at(self._due_s, self._look)
        else:
            self.expire()
