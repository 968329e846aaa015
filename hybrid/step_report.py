"""Tells of steps: operators who log at DEBUG, and plugins that listen."""

import logging
from typing import Final

import structlog

from hybrid.scheduler import StepPlan

from .plugins.lifecycle import LifecycleHooks

log = structlog.get_logger()


class StepReport:
    """One engine's. Steps are short: how the process logs is not asked at each."""

    def __init__(self, hooks: LifecycleHooks) -> None:
        """``hooks`` are told of every step."""
        self._hooks: Final = hooks
        self._logs = True
        self.follow_logging()

    def follow_logging(self) -> None:
        """Take note of how the process logs now; called when a request comes."""
        # Of structlog's own loggers; others may not know.
        is_enabled = getattr(log.bind(), "is_enabled_for", None)
        self._logs = is_enabled is None or is_enabled(logging.DEBUG)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody listens to steps."""
        return self._logs or bool(self._hooks.step_finished)

    def tell(self, plan: StepPlan, total_s: float) -> None:
        """Pass on a step that has been committed."""
        if self._logs:
            log.debug(
                "step.finished",
                step=plan.step,
                num_seqs=len(plan.scheduled),
                num_tokens=plan.num_scheduled_tokens,
                total_s=total_s,
            )
        self._hooks.tell_of_step(plan, total_s)
