"""Schedulers by name: one is chosen among those that plugins offer, and made."""

from hybrid.scheduler import ConfigError, PluginError, Scheduler, SchedulerConfig

from .engine_config import SchedulerFactory
from .nearest_name import nearest_hint
from .plugins.manager import PluginManager


def make_scheduler(
    plugins: PluginManager, choice: str | SchedulerFactory, limits: SchedulerConfig
) -> Scheduler:
    """Make the scheduler of an engine.

    Args:
        plugins: who offers schedulers.
        choice: a name, or a callable that makes one.
        limits: what it is made from.

    Raises:
        ConfigError: there is none of that name, or the callable made no scheduler.
        PluginError: it cannot be imported or made; names its plugin.
    """
    if callable(choice):
        scheduler = choice(limits)
        if not isinstance(scheduler, Scheduler):
            raise ConfigError(
                f"scheduler made a {type(scheduler).__name__}, must make a Scheduler"
            )
        return scheduler
    registry = plugins.schedulers
    entry = registry.find(choice)
    if entry is None:
        raise ConfigError(
            f"scheduler {choice!r} is unknown{nearest_hint(choice, registry.names)}; "
            f"there are: {', '.join(registry.names)}{plugins.missing_hint()}"
        )
    made = entry.make(limits)
    if not isinstance(made, Scheduler):
        raise PluginError(f"{entry} made a {type(made).__name__}, must be Scheduler")
    return made
