"""Every hook there is. A plugin implements those it wants, each under its own name.

An implementation carries ``@hookimpl`` and takes those of the arguments that it wants,
by name. Registration hooks are called once, when an engine (or a command that lists
plugins) loads the plugin; lifecycle hooks on the engine's thread, between steps, so a
slow one slows every request. One that raises is logged as ``plugin.hook_failed`` and
not called again by that engine; it harms no request.
"""

from collections.abc import Callable

from hybrid.outputs import RequestOutput

from .descriptors import (
    ExecutorDescriptor,
    LogitsProcessorDescriptor,
    SchedulerDescriptor,
)
from .engine_events import EngineStarted, EngineStopped, StepFinished
from .markers import hookspec


class HookSpecs:
    """The hooks, their arguments and when they are called."""

    @hookspec
    def hybrid_register_executors(
        self, register: Callable[[ExecutorDescriptor], None]
    ) -> None:
        """Offer executors.

        Args:
            register: takes one descriptor; call it for each executor.
        """

    @hookspec
    def hybrid_register_schedulers(
        self, register: Callable[[SchedulerDescriptor], None]
    ) -> None:
        """Offer schedulers, or policies of ours.

        Args:
            register: takes one descriptor; call it for each scheduler.
        """

    @hookspec
    def hybrid_register_logits_processors(
        self, register: Callable[[LogitsProcessorDescriptor], None]
    ) -> None:
        """Offer logits processors. None runs unless an engine's options name it.

        Args:
            register: takes one descriptor; call it for each processor.
        """

    @hookspec
    def hybrid_engine_started(self, engine: EngineStarted) -> None:
        """Learn that an engine is ready, before its first request.

        Args:
            engine: what it runs.
        """

    @hookspec
    def hybrid_step_finished(self, step: StepFinished) -> None:
        """Learn of a step; up to some thousands a second.

        Args:
            step: its plan and its duration.
        """

    @hookspec
    def hybrid_request_finished(self, output: RequestOutput) -> None:
        """Learn of a request's end, whatever ended it.

        Args:
            output: its last output: the whole answer, finish reasons, metrics.
        """

    @hookspec
    def hybrid_engine_stopped(self, engine: EngineStopped) -> None:
        """Learn that an engine has ended; the last call it makes.

        Args:
            engine: why, and how many requests it took.
        """
