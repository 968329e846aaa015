"""Puts a scheduler in order after a step that was cut short, or an engine's end."""

from collections.abc import Iterable

import structlog

from hybrid.scheduler import Scheduler, StepPlan

from .failure_reason import failure_reason

log = structlog.get_logger()


def close_plan(scheduler: Scheduler, plan: StepPlan) -> None:
    """Give back a plan whose requests are aborted; its tokens are of no use."""
    scheduler.update(plan, [(0,) * entry.num_samples for entry in plan.scheduled])


def abort_all(
    scheduler: Scheduler, request_ids: Iterable[str], plan: StepPlan | None
) -> None:
    """Free every request's blocks at an engine's end.

    Args:
        scheduler: perhaps what has failed: what it raises is logged.
        request_ids: the unfinished requests.
        plan: made and not committed.
    """
    try:
        for request_id in request_ids:
            scheduler.abort(request_id)
        if plan is not None:
            close_plan(scheduler, plan)
    except Exception as error:  # noqa: BLE001 - a third party's, at the end of its use
        log.warning("scheduler.abort_failed", reason=failure_reason(error))
