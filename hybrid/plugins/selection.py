"""Which plugins may be loaded: said by options, else by the environment."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from hybrid.scheduler.errors import ConfigError

ALLOWED_VARIABLE: Final = "HYBRID_PLUGINS"
DISABLED_VARIABLE: Final = "HYBRID_PLUGINS_DISABLED"


@dataclass(frozen=True, slots=True)
class PluginSelection:
    """Names of plugins, as their entry points have them; built-ins are always in."""

    allowed: tuple[str, ...] | None = None
    """These alone, and each must load; ``None``: whatever is installed."""
    disabled: tuple[str, ...] = ()
    """Not these; a name that is not installed is a warning."""

    def __post_init__(self) -> None:
        both = sorted({*(self.allowed or ())} & {*self.disabled})
        if both:
            raise ConfigError(
                f"plugin {both[0]!r} is both asked for (plugins, {ALLOWED_VARIABLE}) "
                f"and disabled (plugins_disabled, {DISABLED_VARIABLE})"
            )

    @classmethod
    def choose(
        cls,
        allowed: Sequence[str] | None = None,
        disabled: Sequence[str] | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> Self:
        """Take each list from its option, or if that is ``None`` from its variable.

        Raises:
            ConfigError: a name is in both lists.
        """
        if allowed is None and ALLOWED_VARIABLE in environment:
            allowed = parse_names(environment[ALLOWED_VARIABLE])
        if disabled is None:
            disabled = parse_names(environment.get(DISABLED_VARIABLE, ""))
        return cls(None if allowed is None else tuple(allowed), tuple(disabled))

    def why_not(self, name: str) -> str | None:
        """Why a plugin of this name is left out, or ``None``."""
        if name in self.disabled:
            return f"listed in plugins_disabled or {DISABLED_VARIABLE}"
        if self.allowed is not None and name not in self.allowed:
            return (
                f"plugins or {ALLOWED_VARIABLE} lists the plugins to load, and this "
                "one is not among them"
            )
        return None


def parse_names(text: str) -> tuple[str, ...]:
    """Read a comma list; an empty text is an empty list."""
    return tuple(name for part in text.split(",") if (name := part.strip()))
