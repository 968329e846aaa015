"""What is known of one plugin: where it came from and what became of it."""

from dataclasses import dataclass
from enum import StrEnum


class PluginStatus(StrEnum):
    """What became of a plugin that was found or asked for."""

    LOADED = "loaded"
    DISABLED = "disabled"
    """Left out by name; it was not imported."""
    FAILED = "failed"
    """It could not be imported, or was refused; nothing of it is registered."""
    DUPLICATE = "duplicate"
    """Another distribution has a plugin of this name; it was not imported."""
    MISSING = "missing"
    """It was asked for by name and is not installed."""


@dataclass(frozen=True, slots=True)
class PluginSource:
    """Where a plugin came from."""

    name: str
    """That of its entry point."""
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"plugin {self.name} ({self.distribution} {self.version})"


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """One line of ``hybrid plugins``."""

    source: PluginSource
    status: PluginStatus
    reason: str | None = None
    """Why it is not loaded."""
    api_version: tuple[int, int] | None = None
    """That it was written against; ``None`` where it was not imported or tells none."""
    hooks: tuple[str, ...] = ()
    executors: tuple[str, ...] = ()
    schedulers: tuple[str, ...] = ()
    logits_processors: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say what became of it, in one line."""
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.source} {self.status.value}{reason}"
