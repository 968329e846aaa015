"""The plugins of one engine: what they offer, what became of each, their hooks."""

from collections.abc import Iterable
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
        """Every plugin that was found, in the order of loading."""
        return tuple(self._records)

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
        cause: BaseException | None = None,
    ) -> None:
        """Note a plugin that is not loaded; ``cause`` is what it raised."""
        self._records.append(PluginRecord(source, status, why))
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
            if not found:
                known = sorted({record.source.name for record in self._records})
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
        """Log one ``plugin.failed`` for each plugin that broke or is there twice."""
        for record in self._records:
            if record.status in {PluginStatus.FAILED, PluginStatus.DUPLICATE}:
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
            engine_started=self._guarded("hybrid_engine_started", "engine"),
            step_finished=self._guarded("hybrid_step_finished", "step"),
            request_finished=self._guarded("hybrid_request_finished", "output"),
            engine_stopped=self._guarded("hybrid_engine_stopped", "engine"),
        )

    def _guarded(self, hook_name: str, argument: str) -> GuardedHook[Any]:
        # Last registered, first called: the order in which pluggy itself calls.
        implementations = reversed(self._hook(hook_name).get_hookimpls())
        plugins = {impl.plugin_name: impl.plugin for impl in implementations}
        sources = {record.source.name: record.source for record in self._records}
        calls = [
            (sources[name], self._alone(hook_name, plugin))
            for name, plugin in plugins.items()
        ]
        return GuardedHook(hook_name, argument, calls)

    def _offers(self, kind: str, plugin: Any) -> list[object]:
        """What one plugin registers of one kind."""
        offered: list[object] = []
        self._alone(f"hybrid_register_{kind}", plugin)(register=offered.append)
        return offered

    def _alone(self, hook_name: str, plugin: Any) -> pluggy.HookCaller:
        """A caller of one plugin's implementation of a hook."""
        others = [other for other in self._pluggy.get_plugins() if other is not plugin]
        return self._pluggy.subset_hook_caller(hook_name, others)

    def _hook(self, name: str) -> pluggy.HookCaller:
        caller: pluggy.HookCaller = getattr(self._pluggy.hook, name)
        return caller
