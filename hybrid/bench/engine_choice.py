"""Which engine is measured."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.shown_value import shown


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An executor and its own options; what else an engine takes is common to all."""

    executor: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``name`` or ``name:option=value,option=value``; JSON values are taken.

        Raises:
            ConfigError: there is no name, an option has no ``=`` or comes twice.
        """
        name, colon, assignments = text.partition(":")
        options: dict[str, Any] = {}
        for assignment in assignments.split(",") if colon else ():
            option, separator, value = assignment.partition("=")
            if not option or not separator or option in options:
                raise ConfigError(
                    f"executor is {shown(text)}, must be name or "
                    "name:option=value,option=value, each option once"
                )
            try:
                options[option] = json.loads(value)
            except ValueError:
                options[option] = value
        if not name:
            raise ConfigError(f"executor is {shown(text)}, must begin with a name")
        return cls(name, options)

    @property
    def label(self) -> str:
        """What it is called in tables and plots; as it was asked for."""
        if not self.options:
            return self.executor
        options = (f"{name}={value}" for name, value in self.options.items())
        return f"{self.executor}:{','.join(options)}"
