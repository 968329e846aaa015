"""Finds the installed plugins and loads those that may be, each on its own.

Not pluggy's ``load_setuptools_entrypoints``: there one import that fails ends the
loading of all, and the second distribution of a name is passed over in silence.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Final

import structlog

from hybrid.failure_reason import failure_place, failure_reason
from hybrid.nearest_name import nearest_hint

from .built_in import BUILT_IN, BuiltInPlugin
from .manager import PluginManager
from .markers import ENTRY_POINT_GROUP
from .plugin_check import declared_api_version
from .plugin_record import PluginSource, PluginStatus
from .selection import PluginSelection

log = structlog.get_logger()

_UNKNOWN: Final = "unknown"


def load_plugins(selection: PluginSelection | None = None) -> PluginManager:
    """Register the built-ins, then every installed plugin that may be loaded.

    What a plugin raises, in its import or after, is noted in the manager's records and
    harms no other; ``PluginManager.require`` is for those that must be there.

    Args:
        selection: which may be imported; ``None``: as the environment says.

    Raises:
        ConfigError: the environment asks for what it disables.
    """
    selection = PluginSelection.choose() if selection is None else selection
    manager = PluginManager()
    manager.add(BuiltInPlugin(), BUILT_IN)
    taken = {BUILT_IN.name: BUILT_IN}
    for source, entry_point in _find(manager):
        why_not = selection.why_not(source.name)
        if why_not is not None:
            manager.leave_out(source, PluginStatus.DISABLED, why_not)
        elif source.name in taken:
            first = taken[source.name]
            why = f"{first.distribution} {first.version} has a plugin of this name, too"
            manager.leave_out(source, PluginStatus.DUPLICATE, why)
        else:
            taken[source.name] = source
            _load(manager, source, entry_point)
    _note_absent(manager, selection)
    return manager


def _note_absent(manager: PluginManager, selection: PluginSelection) -> None:
    """Names in either list that nothing answers to, misspelt ones for the most part."""
    installed = manager.installed
    for name in dict.fromkeys(selection.allowed or ()):
        if name not in installed:
            source = PluginSource(name, _UNKNOWN, _UNKNOWN)
            why = f"not installed{nearest_hint(name, installed)}"
            manager.leave_out(source, PluginStatus.MISSING, why)
    for name in dict.fromkeys(selection.disabled):
        if name not in installed:
            hint = nearest_hint(name, installed)
            reason = f"disabled, and not installed{hint}"
            log.warning("plugin.unknown_disabled", plugin=name, reason=reason)


def _find(manager: PluginManager) -> list[tuple[PluginSource, EntryPoint]]:
    """The entry points by name, then distribution: alike on every machine."""
    try:
        found = [
            (_source(point), point) for point in entry_points(group=ENTRY_POINT_GROUP)
        ]
    except Exception as error:  # noqa: BLE001 - any installed distribution's metadata
        source = PluginSource(ENTRY_POINT_GROUP, _UNKNOWN, _UNKNOWN)
        why = f"entry points cannot be read: {failure_reason(error)}"
        manager.leave_out(source, PluginStatus.FAILED, why)
        return []
    return sorted(
        found, key=lambda pair: (pair[0].name, pair[0].distribution, pair[1].value)
    )


def _source(entry_point: EntryPoint) -> PluginSource:
    # A half-removed distribution has neither name nor version.
    distribution = entry_point.dist
    name = None if distribution is None else distribution.name
    version = None if distribution is None else distribution.version
    return PluginSource(entry_point.name, name or _UNKNOWN, version or _UNKNOWN)


def _load(manager: PluginManager, source: PluginSource, point: EntryPoint) -> None:
    plugin = None
    try:
        plugin = point.load()
        manager.add(plugin, source)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a third party's; a panic in Rust is no Exception
        reason = failure_reason(error)
        place = failure_place(error, point.module.partition(".")[0])
        why = reason if place is None else f"{reason} ({place})"
        version = declared_api_version(plugin)
        manager.leave_out(
            source, PluginStatus.FAILED, why, api_version=version, cause=error
        )
