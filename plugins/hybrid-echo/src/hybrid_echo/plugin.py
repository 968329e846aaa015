"""What the engine finds behind the entry point: names and places, nothing heavy."""

from collections.abc import Callable
from typing import Final

from hybrid.api import ExecutorDescriptor, SchedulerDescriptor, hookimpl

hybrid_api_version: Final = (1, 0)
"""The ``hybrid.api`` that this plugin was written against."""


@hookimpl
def hybrid_register_executors(register: Callable[[ExecutorDescriptor], None]) -> None:
    """Name the executor; its module is imported only if somebody chooses it."""
    register(
        ExecutorDescriptor(
            name="echo",
            path="hybrid_echo.executor:EchoExecutor",
            description="goes on as the text went on before; no model",
            needs_model=False,
        )
    )


@hookimpl
def hybrid_register_schedulers(register: Callable[[SchedulerDescriptor], None]) -> None:
    """Name the scheduling policy."""
    register(
        SchedulerDescriptor(
            name="shortest-prompt",
            path="hybrid_echo.policy:shortest_prompt_first",
            description="the shortest prompt first",
        )
    )
