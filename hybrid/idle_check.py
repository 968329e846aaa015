"""Checks the pool's invariants while nothing runs."""

from collections.abc import Callable
from typing import Final

from hybrid.scheduler import Scheduler

CHECK_INTERVAL_S: Final = 60.0
"""The check walks every block, so an engine that falls idle often does it seldom."""

BUSY_INTERVAL_S: Final = 1.0
"""A busy engine is asked again after this long: its gauges cost what a plan costs."""


class IdleCheck:
    """Remembers when the last check was."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        """``clock`` gives monotonic seconds."""
        self._scheduler: Final = scheduler
        self._clock: Final = clock
        self._next_check_s = 0.0

    def run_if_due(self) -> None:
        """Check before a step, if nothing ran until now, at most once a minute.

        Raises:
            AssertionError: an invariant is broken.
        """
        now_s = self._clock()
        if now_s < self._next_check_s:
            return
        if self._scheduler.stats().num_running:
            self._next_check_s = now_s + BUSY_INTERVAL_S
            return
        self._next_check_s = now_s + CHECK_INTERVAL_S
        self._scheduler.check_integrity()
