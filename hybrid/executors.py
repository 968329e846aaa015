"""Executors by name: one is chosen among those that plugins offer, and made."""

from collections.abc import Sequence
from dataclasses import dataclass

from hybrid.backends.interface import Capabilities, Executor, Implementation
from hybrid.scheduler import ConfigError, HybridError, PluginError
from hybrid.scheduler.shown_value import shown

from .capability_check import check_capabilities
from .default_executor import default_executor
from .executor_calls import call_executor, close_executor
from .failure_reason import failure_reason
from .nearest_name import nearest_hint
from .plugins.descriptors import RESERVED_NAME, ExecutorDescriptor
from .plugins.manager import PluginManager
from .plugins.registry import Registration


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
    implementations: tuple[Implementation, ...] = ()
    """The ways in which it can compute, the preferred first; where they were asked
    for."""

    @property
    def available(self) -> bool:
        """Whether it can run here."""
        return self.reason is None


def create_executor(plugins: PluginManager, name: str, *, has_model: bool) -> Executor:
    """Make an executor by name; ``auto`` is what suits the machine.

    Raises:
        ConfigError: there is none of that name, what it needs is not installed, or it
            needs a model and there is none.
        PluginError: it cannot be imported or made, or was written against another
            contract; names its plugin.
    """
    registry = plugins.executors
    if name == RESERVED_NAME:
        name = default_executor()
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


def list_executors(
    plugins: PluginManager, *, explain: bool = False
) -> tuple[ExecutorEntry, ...]:
    """Every executor and what it can do here; imports those that are installed.

    Args:
        plugins: that offer them.
        explain: whether each is asked for its implementations, too, for which it may
            import more.
    """
    return tuple(_entry(entry, explain=explain) for entry in plugins.executors)


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


def _make(entry: Registration[ExecutorDescriptor]) -> Executor:
    executor = entry.make()
    if not isinstance(executor, Executor):
        raise PluginError(f"{entry} is a {type(executor).__name__}, must be Executor")
    return executor


def _read_capabilities(
    entry: Registration[ExecutorDescriptor], executor: Executor
) -> Capabilities:
    """Ask what it can do, and hold it against this engine's contract.

    Raises:
        PluginError: it cannot tell, or nobody could build an engine from it.
    """
    try:
        capabilities = call_executor(
            entry.descriptor.name, executor.capabilities, Capabilities
        )
        check_capabilities(capabilities, entry.descriptor.name)
    except HybridError as error:
        raise PluginError(f"{entry}: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Who is merely asked what it can do ends no process.
        raise PluginError(f"{entry}: {failure_reason(error)}") from error
    return capabilities


def _read_implementations(
    entry: Registration[ExecutorDescriptor], executor: Executor
) -> tuple[Implementation, ...]:
    ways = call_executor(entry.descriptor.name, executor.implementations, tuple)
    for way in ways:
        if not isinstance(way, Implementation):
            raise PluginError(
                f"{entry}: implementations() has {shown(way)}, must be Implementation"
            )
    return ways


def _entry(entry: Registration[ExecutorDescriptor], *, explain: bool) -> ExecutorEntry:
    descriptor = entry.descriptor
    about = (descriptor.name, descriptor.description, entry.source.name)
    try:
        if descriptor.missing is not None:
            return ExecutorEntry(*about, reason=descriptor.missing)
        executor = _make(entry)
        try:
            capabilities = _read_capabilities(entry, executor)
            ways = _read_implementations(entry, executor) if explain else ()
        finally:
            close_executor(executor)
    except HybridError as error:
        return ExecutorEntry(*about, reason=str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a third party's; it costs its own row
        return ExecutorEntry(*about, reason=failure_reason(error))
    return ExecutorEntry(*about, capabilities=capabilities, implementations=ways)
