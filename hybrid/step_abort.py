"""Puts a scheduler in order after a step that was cut short, or an engine's end."""

from collections.abc import Callable, Iterable
from functools import partial

import structlog

from hybrid.scheduler import Scheduler, StepPlan

from .failure_reason import INTERRUPTS, failure_reason

log = structlog.get_logger()


def abort_all(
    scheduler: Scheduler, request_ids: Iterable[str], plan: StepPlan | None
) -> None:
    """Free every request's blocks, as many as can be.

    Args:
        scheduler: perhaps what has failed: what it raises is logged.
        request_ids: unfinished requests, all that are in ``plan`` among them.
        plan: made and not committed.
    """
    for request_id in request_ids:
        _attempt(partial(scheduler.abort, request_id))
    if plan is not None:
        # Its tokens are of no use: whoever was to get them is aborted.
        tokens = [(0,) * entry.num_samples for entry in plan.scheduled]
        _attempt(partial(scheduler.update, plan, tokens))


def _attempt(call: Callable[[], object]) -> None:
    try:
        call()
    except INTERRUPTS:
        raise
    except BaseException as error:  # noqa: BLE001 - a third party's, at the end of its use
        log.warning("scheduler.abort_failed", reason=failure_reason(error))
