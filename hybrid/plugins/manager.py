"""The plugins of one engine: what they offer, what became of each, their hooks."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import pluggy
import structlog

from hybrid.nearest_name import nearest_hint
from hybrid.scheduler.errors import PluginError

from .descriptors import (
    ExecutorDescriptor,
    LogitsProcessorDescriptor,
    SchedulerDescriptor,
)
from .hookspecs import HookSpecs
from .lifecycle import GuardedHook, LifecycleHooks
from .markers import PROJECT_NAME
from .plugin_check import check_implementation, check_plugin
from .plugin_record import PluginRecord, PluginSource, PluginStatus
from .registry import Registry

log = structlog.get_logger()


class PluginManager:
    """Registers plugins, each as a whole or not at all. One per engine."""

    def __init__(self) -> None:
        """Start without any; ``load_plugins`` makes one with all that is installed."""
        self.executors: Final = Registry("executor", ExecutorDescriptor)
        self.schedulers: Final = Registry("scheduler", SchedulerDescriptor)
        self.logits_processors: Final = Registry(
            "logits processor", LogitsProcessorDescriptor
        )
        self._pluggy: Final = pluggy.PluginManager(PROJECT_NAME)
        self._pluggy.add_hookspecs(HookSpecs)
        self._records: Final[list[PluginRecord]] = []
        self._causes: Final[dict[str, BaseException]] = {}

    @property
    def records(self) -> tuple[PluginRecord, ...]:
        """Every plugin that was found or asked for, in the order of loading."""
        return tuple(self._records)

    @property
    def installed(self) -> tuple[str, ...]:
        """The names of those that are here, whatever became of them; sorted."""
        here = (r for r in self._records if r.status is not PluginStatus.MISSING)
        return tuple(sorted({record.source.name for record in here}))

    def add(self, plugin: Any, source: PluginSource) -> None:
        """Register a plugin and take what it offers.

        Raises:
            PluginError: it is refused; says why.
            pluggy.PluginValidationError: a hook or one of its arguments is unknown.
            BaseException: whatever its own code raised. Nothing of it stays.
        """
        version = check_plugin(plugin)
        self._pluggy.register(plugin, source.name)
        try:
            self._pluggy.check_pending()
            for caller in self._pluggy.get_hookcallers(plugin) or ():
                for implementation in caller.get_hookimpls():
                    check_implementation(implementation)
            executors = self.executors.check(self._offers("executors", plugin))
            schedulers = self.schedulers.check(self._offers("schedulers", plugin))
            processors = self.logits_processors.check(
                self._offers("logits_processors", plugin)
            )
        except BaseException:
            self._pluggy.unregister(name=source.name)
            raise
        self.executors.add(source, executors)
        self.schedulers.add(source, schedulers)
        self.logits_processors.add(source, processors)
        callers = self._pluggy.get_hookcallers(plugin) or ()
        self._records.append(
            PluginRecord(
                source,
                PluginStatus.LOADED,
                api_version=version,
                hooks=tuple(caller.name for caller in callers),
                executors=tuple(descriptor.name for descriptor in executors),
                schedulers=tuple(descriptor.name for descriptor in schedulers),
                logits_processors=tuple(descriptor.name for descriptor in processors),
            )
        )

    def leave_out(
        self,
        source: PluginSource,
        status: PluginStatus,
        why: str,
        *,
        api_version: tuple[int, int] | None = None,
        cause: BaseException | None = None,
    ) -> None:
        """Note a plugin that is not loaded; ``cause`` is what it raised."""
        record = PluginRecord(source, status, why, api_version=api_version)
        self._records.append(record)
        if cause is not None:
            self._causes[source.name] = cause

    def require(self, names: Iterable[str]) -> None:
        """Insist on plugins that were asked for by name.

        Raises:
            PluginError: one is not installed, broken (what it raised is the cause) or
                not the only one of its name.
        """
        for name in names:
            found = [r for r in self._records if r.source.name == name]
            if not found or found[0].status is PluginStatus.MISSING:
                known = self.installed
                raise PluginError(
                    f"plugin {name!r} was asked for and is not installed"
                    f"{nearest_hint(name, known)}; there are: {', '.join(known)}"
                )
            for record in found:
                if record.status is not PluginStatus.LOADED:
                    cause = self._causes.get(name)
                    raise PluginError(f"asked for by name: {record}") from cause

    def missing_hint(self) -> str:
        """Name the plugins that are not loaded, for the error about an unknown name."""
        lost = [str(r) for r in self._records if r.status is not PluginStatus.LOADED]
        return f"; {'; '.join(lost)}" if lost else ""

    def warn_of_failures(self) -> None:
        """Log one ``plugin.failed`` for each that broke, is there twice or missing."""
        for record in self._records:
            if record.status not in {PluginStatus.LOADED, PluginStatus.DISABLED}:
                log.warning(
                    "plugin.failed",
                    plugin=record.source.name,
                    distribution=record.source.distribution,
                    version=record.source.version,
                    status=record.status.value,
                    reason=record.reason,
                )

    def lifecycle_hooks(self) -> LifecycleHooks:
        """The lifecycle hooks of all plugins that are registered by now."""
        return LifecycleHooks(
            engine_started=self._guarded("hybrid_engine_started"),
            step_finished=self._guarded("hybrid_step_finished"),
            request_finished=self._guarded("hybrid_request_finished"),
            engine_stopped=self._guarded("hybrid_engine_stopped"),
        )

    def _guarded(self, hook_name: str) -> GuardedHook[Any]:
        caller: pluggy.HookCaller = getattr(self._pluggy.hook, hook_name)
        # Last registered, first called: the order in which pluggy itself calls.
        implementations = reversed(caller.get_hookimpls())
        sources = {record.source.name: record.source for record in self._records}
        calls = [(sources[impl.plugin_name], _bound(impl)) for impl in implementations]
        return GuardedHook(hook_name, calls)

    def _offers(self, kind: str, plugin: Any) -> list[object]:
        """What one plugin registers of one kind."""
        offered: list[object] = []
        others = [other for other in self._pluggy.get_plugins() if other is not plugin]
        alone = self._pluggy.subset_hook_caller(f"hybrid_register_{kind}", others)
        alone(register=offered.append)
        return offered


def _bound(implementation: pluggy.HookImpl) -> Callable[[Any], object]:
    """A call of one implementation with the one argument that lifecycle hooks have.

    pluggy's own caller of one plugin among many walks over all of them at every call.
    """
    function: Callable[..., object] = implementation.function
    if implementation.argnames:
        return function
    return lambda _event: function()
