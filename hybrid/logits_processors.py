"""Logits processors as an engine's options name them: objects, or names of plugins'."""

from collections.abc import Sequence
from typing import Any

from hybrid.scheduler import ConfigError, PluginError

from .nearest_name import nearest_hint
from .plugins.manager import PluginManager
from .sampler.logits_processor import LogitsProcessor


def make_logits_processors(
    plugins: PluginManager, choices: Sequence[Any]
) -> list[LogitsProcessor]:
    """Make those that are named, keep those that are objects; in order.

    Raises:
        ConfigError: there is none of a name.
        PluginError: one cannot be imported or made; names its plugin.
    """
    return [
        _make(plugins, choice) if isinstance(choice, str) else choice
        for choice in choices
    ]


def missing_method(processor: Any) -> str | None:
    """The method that an object lacks to be a logits processor, or ``None``."""
    for method in ("applies_to", "apply"):
        if not callable(getattr(processor, method, None)):
            return method
    return None


def _make(plugins: PluginManager, name: str) -> LogitsProcessor:
    registry = plugins.logits_processors
    entry = registry.find(name)
    if entry is None:
        there = ", ".join(registry.names) or "none"
        raise ConfigError(
            f"logits processor {name!r} is unknown"
            f"{nearest_hint(name, registry.names)}; there are: {there}"
            f"{plugins.missing_hint()}"
        )
    processor: LogitsProcessor = entry.make()
    method = missing_method(processor)
    if method is not None:
        raise PluginError(
            f"{entry} is a {type(processor).__name__} without the method {method}"
        )
    return processor
