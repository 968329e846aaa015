"""What makes an object a plugin that this engine can take."""

import inspect
from typing import Any, TypeGuard

import pluggy

from hybrid.backends.interface import API_VERSION
from hybrid.scheduler.errors import PluginError
from hybrid.scheduler.shown_value import shown

from .hookspecs import HookSpecs

VERSION_ATTRIBUTE = "hybrid_api_version"


def check_api_version(version: Any) -> tuple[int, int]:
    """Check the version that something was written against.

    Returns:
        The version.

    Raises:
        PluginError: it is no version, its major differs from ours, or its minor is
            newer.
    """
    if not _is_version(version):
        raise PluginError(
            f"API version is {shown(version)}, must be (major, minor), both 0 or more"
        )
    major, minor = version
    if major != API_VERSION[0] or minor > API_VERSION[1]:
        raise PluginError(
            f"API version is {major}.{minor}, this engine takes "
            f"{API_VERSION[0]}.0 to {API_VERSION[0]}.{API_VERSION[1]}"
        )
    return major, minor


def declared_api_version(plugin: Any) -> tuple[int, int] | None:
    """The version that a plugin says it was written against, be it one that we take.

    Runs nothing of it; ``None`` where there is none or it makes no sense.
    """
    version = inspect.getattr_static(plugin, VERSION_ATTRIBUTE, None)
    return version if _is_version(version) else None


def check_plugin(plugin: Any) -> tuple[int, int]:
    """Check, before it is registered, what pluggy would not.

    Returns:
        The API version that it was written against.

    Raises:
        PluginError: says what is wrong.
    """
    if inspect.isclass(plugin):
        raise PluginError(
            f"the entry point names the class {plugin.__name__}, must name a module "
            "or an instance"
        )
    if getattr(type(plugin), "__hash__", None) is None:
        raise PluginError(
            f"a {type(plugin).__name__} is not hashable, a plugin must be"
        )
    if not hasattr(plugin, VERSION_ATTRIBUTE):
        raise PluginError(
            f"it lacks {VERSION_ATTRIBUTE} = {API_VERSION}, the version of hybrid.api "
            "that it was written against"
        )
    version = check_api_version(getattr(plugin, VERSION_ATTRIBUTE))
    for name in hook_names():
        function = inspect.getattr_static(plugin, name, None)
        # pluggy passes over a function that is not marked, in silence.
        if inspect.isfunction(function) and not hasattr(function, "hybrid_impl"):
            raise PluginError(f"{name} lacks the decorator @hookimpl")
    return version


def check_implementation(implementation: pluggy.HookImpl) -> None:
    """Refuse what pluggy would take and nobody would run.

    Raises:
        PluginError: it is a coroutine function, or a generator function; one of
            pluggy's wrappers, too, for each hook is called by itself.
    """
    function = implementation.function
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise PluginError(f"{function.__name__} is async; hooks are not awaited")
    if inspect.isgeneratorfunction(function):
        raise PluginError(
            f"{function.__name__} has a yield; hooks are called, not iterated over"
        )


def hook_names() -> tuple[str, ...]:
    """The hooks there are, in the order in which they are documented."""
    return tuple(name for name in vars(HookSpecs) if name.startswith("hybrid_"))


def _is_version(value: Any) -> TypeGuard[tuple[int, int]]:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and all(type(part) is int and part >= 0 for part in value)
    )
