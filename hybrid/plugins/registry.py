"""Descriptors of one kind by name, each with the plugin that offers it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Generic, TypeVar

from hybrid.failure_reason import failure_reason
from hybrid.scheduler.errors import HybridError, PluginError
from hybrid.scheduler.shown_value import shown

from .descriptors import Descriptor
from .plugin_record import PluginSource

D = TypeVar("D", bound=Descriptor)


@dataclass(frozen=True, slots=True)
class Registration(Generic[D]):
    """A descriptor and whose it is."""

    kind: str
    descriptor: D
    source: PluginSource

    def __str__(self) -> str:
        return f"{self.kind} {self.descriptor.name!r} of {self.source}"

    def make(self, *arguments: object) -> Any:
        """Import what the descriptor names, and call it.

        Raises:
            PluginError: it cannot be imported, or the call raises anything but an error
                of this engine's; says whose it is and what broke.
        """
        path = self.descriptor.path
        module_name, _, name = path.partition(":")
        try:
            factory = getattr(import_module(module_name), name)
            return factory(*arguments)
        except (KeyboardInterrupt, HybridError):
            raise
        except BaseException as error:
            # Libraries in other languages raise panics that are no Exception.
            raise PluginError(
                f"{self} cannot be made: {path}: {failure_reason(error)}"
            ) from error


class Registry(Generic[D]):
    """What plugins offer of one kind; a name is given once."""

    def __init__(self, kind: str, descriptor_type: type[D]) -> None:
        """Start empty; ``kind`` is for messages."""
        self.kind: Final = kind
        self._type: Final = descriptor_type
        self._entries: Final[dict[str, Registration[D]]] = {}

    def __iter__(self) -> Iterator[Registration[D]]:
        return iter(self._entries.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names there are, built-ins first."""
        return tuple(self._entries)

    def find(self, name: str) -> Registration[D] | None:
        """What goes by a name."""
        return self._entries.get(name)

    def check(self, offered: Sequence[object]) -> tuple[D, ...]:
        """Look at one plugin's offers before any of them is taken.

        Raises:
            PluginError: one is no descriptor of this kind, or its name is taken.
        """
        checked: dict[str, D] = {}
        for descriptor in offered:
            if not isinstance(descriptor, self._type):
                raise PluginError(
                    f"it registers {shown(descriptor)} as {self.kind}, which is no "
                    f"{self._type.__name__}"
                )
            taken = self._entries.get(descriptor.name)
            if taken is not None:
                raise PluginError(f"its {self.kind} would shadow {taken}")
            if descriptor.name in checked:
                raise PluginError(f"{self.kind} {descriptor.name!r} is there twice")
            checked[descriptor.name] = descriptor
        return tuple(checked.values())

    def add(self, source: PluginSource, checked: Sequence[D]) -> None:
        """Take what ``check`` returned."""
        for descriptor in checked:
            entry = Registration(self.kind, descriptor, source)
            self._entries[descriptor.name] = entry
