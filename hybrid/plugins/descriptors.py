"""What a plugin offers, told without importing it."""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from hybrid.scheduler.errors import PluginError
from hybrid.scheduler.shown_value import shown

RESERVED_NAME: Final = "auto"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PATH: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class ExecutorDescriptor:
    """An executor by name; its class is imported when it is chosen.

    Raises:
        PluginError: a field is malformed.
    """

    name: str
    """What ``executor="..."`` says."""
    class_path: str
    """``module:Class``; made without arguments."""
    description: str
    """One line, for tables."""
    requires: tuple[str, ...] = ()
    """Top-level modules it cannot do without; looked for, not imported."""
    install_hint: str | None = None
    """How to get what is missing, e.g. ``pip install hybrid-openvino``."""
    needs_model: bool = True
    """Whether it runs a model from files."""

    def __post_init__(self) -> None:
        _check_name("ExecutorDescriptor", self.name)
        _check_path("ExecutorDescriptor.class_path", self.class_path)
        for module in self.requires:
            if not module.isidentifier():
                raise PluginError(
                    f"ExecutorDescriptor.requires has {shown(module)}, must be "
                    "top-level modules"
                )

    @property
    def missing(self) -> str | None:
        """Why it cannot run here, or ``None``."""
        absent = [name for name in self.requires if find_spec(name) is None]
        if not absent:
            return None
        hint = f"; {self.install_hint}" if self.install_hint else ""
        return f"not installed: {', '.join(absent)}{hint}"


@dataclass(frozen=True, slots=True)
class SchedulerDescriptor:
    """A scheduler by name; imported when it is chosen.

    Raises:
        PluginError: a field is malformed.
    """

    name: str
    """What ``scheduler="..."`` says."""
    factory_path: str
    """``module:callable`` from a ``SchedulerConfig`` to a ``Scheduler``."""
    description: str
    """One line, for tables."""

    def __post_init__(self) -> None:
        _check_name("SchedulerDescriptor", self.name)
        _check_path("SchedulerDescriptor.factory_path", self.factory_path)


@dataclass(frozen=True, slots=True)
class LogitsProcessorDescriptor:
    """A logits processor by name; imported when it is chosen.

    Raises:
        PluginError: a field is malformed.
    """

    name: str
    """What ``logits_processors=["..."]`` says."""
    class_path: str
    """``module:Class``; made without arguments."""
    description: str
    """One line, for tables."""

    def __post_init__(self) -> None:
        _check_name("LogitsProcessorDescriptor", self.name)
        _check_path("LogitsProcessorDescriptor.class_path", self.class_path)


def _check_name(kind: str, name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name == RESERVED_NAME:
        raise PluginError(
            f"{kind}.name is {shown(name)}, must be letters, digits, '.', '_' and '-', "
            f"and not {RESERVED_NAME!r}"
        )


def _check_path(field: str, path: object) -> None:
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        raise PluginError(f"{field} is {shown(path)}, must be 'module:name'")
