"""Calls of an executor outside of a step; what goes wrong names it."""

from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from hybrid.backends.interface import Capabilities, Executor
from hybrid.scheduler import ExecutorFailed, HybridError

from .failure_reason import INTERRUPTS, failure_reason

log = structlog.get_logger()

T = TypeVar("T")


def call_executor(
    name: str,
    method: Callable[..., Any],
    expected: type[T] | tuple[type[T], ...],
    *arguments: object,
) -> T:
    """Call a method while an engine is built; what goes wrong names the executor.

    Raises:
        ExecutorFailed: it raised what is no error of this engine's, or gave what is no
            ``expected``.
        HybridError: as it raised it.
    """
    try:
        result = method(*arguments)
    except (*INTERRUPTS, HybridError):
        raise
    except BaseException as error:
        raise ExecutorFailed(
            f"executor {name} failed in {method.__name__}: {failure_reason(error)}"
        ) from error
    if not isinstance(result, expected):
        kinds = expected if isinstance(expected, tuple) else (expected,)
        raise ExecutorFailed(
            f"executor {name} gave a {type(result).__name__} from {method.__name__}, "
            f"must give {' or '.join(kind.__name__ for kind in kinds)}"
        )
    return result


def capabilities_of(executor: Executor) -> Capabilities:
    """What an executor that was not chosen by name can do.

    Raises:
        ExecutorFailed: it cannot tell.
    """
    return call_executor(type(executor).__name__, executor.capabilities, Capabilities)


def close_executor(executor: Executor) -> None:
    """Close; what it raises is logged, for it would hide why the engine ends."""
    try:
        executor.close()
    except INTERRUPTS:
        raise
    except BaseException as error:  # noqa: BLE001 - a third party's, at the end of its use
        name, reason = type(executor).__name__, failure_reason(error)
        log.warning("executor.close_failed", executor=name, reason=reason)
