"""Checks the pool's invariants while nothing runs."""

from typing import Final

from hybrid.scheduler import Scheduler

CHECK_INTERVAL_S: Final = 60.0
"""The check walks every block, so an engine that falls idle often does it seldom."""

BUSY_INTERVAL_S: Final = 1.0
"""A busy engine is asked again after this long: its gauges cost what a plan costs."""


class IdleCheck:
    """Remembers when the last check was."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler: Final = scheduler
        self._next_check_s = 0.0

    def run_if_due(self, now_s: float) -> None:
        """Check before a step, if nothing ran until now, at most once a minute.

        Args:
            now_s: on a monotonic clock.

        Raises:
            AssertionError: an invariant is broken.
        """
        if now_s < self._next_check_s:
            return
        if self._scheduler.stats().num_running:
            self._next_check_s = now_s + BUSY_INTERVAL_S
            return
        self._next_check_s = now_s + CHECK_INTERVAL_S
        self._scheduler.check_integrity()
