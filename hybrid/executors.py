"""Executors by name: one is chosen among those that plugins offer, and made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import structlog

from hybrid.backends.interface import Capabilities, Executor
from hybrid.scheduler import ConfigError, ExecutorFailed, HybridError, PluginError

from .capability_check import check_capabilities
from .nearest_name import nearest_hint
from .plugins.descriptors import RESERVED_NAME, ExecutorDescriptor
from .plugins.failure_reason import failure_reason
from .plugins.manager import PluginManager
from .plugins.registry import Registration

log = structlog.get_logger()

T = TypeVar("T")

PREFERENCE: Final = ("torch",)
"""What ``executor="auto"`` takes, the first that is available."""


@dataclass(frozen=True, slots=True)
class ExecutorEntry:
    """One line of ``hybrid executors``."""

    name: str
    description: str
    plugin: str
    """That offers it."""
    reason: str | None = None
    """Why it is not available; ``None``: it is."""
    capabilities: Capabilities | None = None
    """``None`` where it is not available."""

    @property
    def available(self) -> bool:
        """Whether it can run here."""
        return self.reason is None


def create_executor(plugins: PluginManager, name: str, *, has_model: bool) -> Executor:
    """Make an executor by name; ``auto`` is the best that is installed.

    Raises:
        ConfigError: there is none of that name, what it needs is not installed, or it
            needs a model and there is none.
        PluginError: it cannot be imported or made, or was written against another
            contract; names its plugin.
    """
    registry = plugins.executors
    if name == RESERVED_NAME:
        name = _best_of(plugins)
    entry = registry.find(name)
    if entry is None:
        raise ConfigError(
            f"executor {name!r} is unknown{nearest_hint(name, registry.names)}; there "
            f"are: {RESERVED_NAME}, {', '.join(registry.names)}{plugins.missing_hint()}"
        )
    descriptor = entry.descriptor
    if descriptor.missing is not None:
        raise ConfigError(f"executor {name!r} cannot run here: {descriptor.missing}")
    if descriptor.needs_model and not has_model:
        raise ConfigError(
            f"executor {name!r} needs a model: a known name such as smollm2-135m "
            "(`hybrid models` lists them), a directory, a .gguf file, a Hugging Face id"
        )
    executor = _make(entry)
    try:
        _read_capabilities(entry, executor)
    except BaseException:
        close_executor(executor)
        raise
    return executor


def list_executors(plugins: PluginManager) -> tuple[ExecutorEntry, ...]:
    """Every executor and what it can do here; imports those that are installed."""
    return tuple(_entry(entry) for entry in plugins.executors)


def call_executor(
    name: str,
    method: Callable[..., Any],
    expected: type[T] | tuple[type[T], ...],
    *arguments: object,
) -> T:
    """Call a method while an engine is built; what goes wrong names the executor.

    Raises:
        ExecutorFailed: it raised what is no error of this engine's, or gave what is no
            ``expected``.
        HybridError: as it raised it.
    """
    try:
        result = method(*arguments)
    except HybridError:
        raise
    except Exception as error:
        raise ExecutorFailed(
            f"executor {name} failed in {method.__name__}: {failure_reason(error)}"
        ) from error
    if not isinstance(result, expected):
        kinds = expected if isinstance(expected, tuple) else (expected,)
        raise ExecutorFailed(
            f"executor {name} gave a {type(result).__name__} from {method.__name__}, "
            f"must give {' or '.join(kind.__name__ for kind in kinds)}"
        )
    return result


def capabilities_of(executor: Executor) -> Capabilities:
    """What an executor that was not chosen by name can do.

    Raises:
        ExecutorFailed: it cannot tell.
    """
    return call_executor(type(executor).__name__, executor.capabilities, Capabilities)


def close_executor(executor: Executor) -> None:
    """Close; what it raises is logged, for it would hide why the engine ends."""
    try:
        executor.close()
    except Exception as error:  # noqa: BLE001 - a third party's, at the end of its use
        name, reason = type(executor).__name__, failure_reason(error)
        log.warning("executor.close_failed", executor=name, reason=reason)


def describe_features(capabilities: Capabilities) -> Sequence[str]:
    """Name what an executor can do beyond running a plan, for tables."""
    flags = {
        "logits": capabilities.returns_logits,
        "prefix reuse": capabilities.prefix_reuse,
        "chunked prefill": capabilities.chunked_prefill,
        "block copy": capabilities.block_copy,
        "prompt logprobs": capabilities.prompt_logprobs,
    }
    return [name for name, can in flags.items() if can]


def _best_of(plugins: PluginManager) -> str:
    for name in PREFERENCE:
        entry = plugins.executors.find(name)
        if entry is not None and entry.descriptor.missing is None:
            return name
    return PREFERENCE[0]


def _make(entry: Registration[ExecutorDescriptor]) -> Executor:
    executor = entry.make()
    if not isinstance(executor, Executor):
        raise PluginError(f"{entry} is a {type(executor).__name__}, must be Executor")
    return executor


def _read_capabilities(
    entry: Registration[ExecutorDescriptor], executor: Executor
) -> Capabilities:
    """Ask what it can do, and hold it against this engine's contract."""
    try:
        capabilities = call_executor(
            entry.descriptor.name, executor.capabilities, Capabilities
        )
        check_capabilities(capabilities, entry.descriptor.name)
    except HybridError as error:
        raise PluginError(f"{entry}: {error}") from error
    return capabilities


def _entry(entry: Registration[ExecutorDescriptor]) -> ExecutorEntry:
    descriptor = entry.descriptor
    about = (descriptor.name, descriptor.description, entry.source.name)
    if descriptor.missing is not None:
        return ExecutorEntry(*about, reason=descriptor.missing)
    try:
        capabilities = _read_capabilities(entry, _make(entry))
    except HybridError as error:
        return ExecutorEntry(*about, reason=str(error))
    return ExecutorEntry(*about, capabilities=capabilities)
