"""Checks the pool's invariants while an engine has nothing to do."""

from collections.abc import Callable
from typing import Final

from hybrid.scheduler import Scheduler

CHECK_INTERVAL_S: Final = 60.0
"""The check walks every block, so an engine that falls idle often does it seldom."""


class IdleCheck:
    """Remembers when the last check was."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        """``clock`` gives monotonic seconds."""
        self._scheduler: Final = scheduler
        self._clock: Final = clock
        self._next_check_s = 0.0

    def run_if_due(self) -> None:
        """Check when nothing runs or waits, at most once a minute.

        Raises:
            AssertionError: an invariant is broken.
        """
        if self._scheduler.has_unfinished():
            return
        now_s = self._clock()
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + CHECK_INTERVAL_S
            self._scheduler.check_integrity()
