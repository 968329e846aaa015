"""Calls the lifecycle hooks of plugins so that none of them can harm a request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import structlog

from hybrid.failure_reason import failure_reason
from hybrid.outputs import RequestOutput
from hybrid.scheduler.plan import StepPlan

from .engine_events import EngineStarted, EngineStopped, StepFinished
from .plugin_record import PluginSource

log = structlog.get_logger()

Event = TypeVar("Event")


class GuardedHook(Generic[Event]):
    """One hook of all plugins. False where nobody implements it: make no event then.

    pluggy calls all implementations in one loop, which the first exception ends; here
    each plugin's is called by itself, and one that raises is not called again.
    """

    def __init__(
        self,
        name: str = "",
        calls: Sequence[tuple[PluginSource, Callable[[Event], object]]] = (),
    ) -> None:
        """Take each plugin's implementation, in the order of calling."""
        self._name: Final = name
        self._calls: Final = list(calls)

    def __bool__(self) -> bool:
        return bool(self._calls)

    def __call__(self, event: Event) -> None:
        """Tell every plugin; raises nothing but what is to end the process."""
        for call in tuple(self._calls):
            source, implementation = call
            try:
                implementation(event)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - a third party's; one that exits ends no engine
                self._calls.remove(call)
                log.warning(
                    "plugin.hook_failed",
                    plugin=source.name,
                    distribution=source.distribution,
                    version=source.version,
                    hook=self._name,
                    reason=failure_reason(error),
                )


@dataclass(frozen=True, slots=True)
class LifecycleHooks:
    """The lifecycle hooks of one engine; by default nobody's."""

    engine_started: GuardedHook[EngineStarted] = field(default_factory=GuardedHook)
    step_finished: GuardedHook[StepFinished] = field(default_factory=GuardedHook)
    request_finished: GuardedHook[RequestOutput] = field(default_factory=GuardedHook)
    engine_stopped: GuardedHook[EngineStopped] = field(default_factory=GuardedHook)

    def tell_of_step(self, plan: StepPlan, total_s: float) -> None:
        """Pass on a step that has been committed."""
        if self.step_finished:
            self.step_finished(StepFinished(plan=plan, total_s=total_s))

    def tell_of_requests(self, outputs: Sequence[RequestOutput]) -> None:
        """Pass on the last outputs of requests."""
        if self.request_finished:
            for output in outputs:
                self.request_finished(output)

    def tell_of_end(self, error: str | None, num_requests: int) -> None:
        """Pass on that the engine has ended."""
        if self.engine_stopped:
            event = EngineStopped(error=error, num_requests=num_requests)
            self.engine_stopped(event)
