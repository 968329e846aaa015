"""What a plugin offers, told without importing it."""

import re
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from hybrid.scheduler.errors import PluginError
from hybrid.scheduler.shown_value import shown

RESERVED_NAME: Final = "auto"
"""Of executors: whichever is best here."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MODULE: Final = re.compile(r"[A-Za-z_]\w*")
_PATH: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """Something by name, which is imported when an engine's options name it.

    Raises:
        PluginError: a field is malformed.
    """

    name: str
    """What the option says."""
    path: str
    """``module:name`` of the callable that makes it."""
    description: str
    """One line, for tables."""

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if not _matches(_NAME, self.name):
            raise PluginError(
                f"{kind}.name is {shown(self.name)}, must be letters, digits, '.', "
                "'_' and '-'"
            )
        if not _matches(_PATH, self.path):
            raise PluginError(
                f"{kind}.path is {shown(self.path)}, must be 'module:name'"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorDescriptor(Descriptor):
    """An executor: ``path`` names its class, which is made without arguments.

    Raises:
        PluginError: a field is malformed.
    """

    requires: tuple[str, ...] = ()
    """Top-level modules it cannot do without; looked for, not imported."""
    install_hint: str | None = None
    """How to get what is missing, e.g. ``pip install hybrid-openvino``."""
    needs_model: bool = True
    """Whether it runs a model from files."""

    def __post_init__(self) -> None:
        # No super(): the class that it would look for is not the one with slots.
        Descriptor.__post_init__(self)
        if self.name == RESERVED_NAME:
            raise PluginError(f"ExecutorDescriptor.name is {RESERVED_NAME!r}, reserved")
        if not isinstance(self.requires, tuple):
            raise PluginError(
                f"ExecutorDescriptor.requires is {shown(self.requires)}, "
                "must be a tuple"
            )
        for module in self.requires:
            if not _matches(_MODULE, module):
                raise PluginError(
                    f"ExecutorDescriptor.requires has {shown(module)}, must be "
                    "top-level modules"
                )

    @property
    def missing(self) -> str | None:
        """Why it cannot run here, or ``None``."""
        absent = [name for name in self.requires if not _is_installed(name)]
        if not absent:
            return None
        hint = f"; {self.install_hint}" if self.install_hint else ""
        return f"not installed: {', '.join(absent)}{hint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerDescriptor(Descriptor):
    """A scheduler: ``path``'s callable takes a ``SchedulerConfig``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsProcessorDescriptor(Descriptor):
    """A logits processor: ``path`` names its class, made without arguments."""


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_installed(module: str) -> bool:
    # find_spec raises of a module that is there without a spec, as __main__ is.
    return sys.modules.get(module) is not None or find_spec(module) is not None
