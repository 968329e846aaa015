"""The executors that come with the package: found by name, imported when chosen."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from hybrid.backends.interface import API_VERSION, Capabilities, Executor
from hybrid.scheduler import ConfigError

from .nearest_name import nearest_hint


@dataclass(frozen=True, slots=True)
class ExecutorDescriptor:
    """What is known of an executor without importing it."""

    name: str
    class_path: str
    """``module:Class``."""
    description: str
    requires: tuple[str, ...] = ()
    """Top-level modules it cannot do without."""
    extra: str | None = None
    """The package's extra that installs them."""
    needs_model: bool = True
    """Whether it runs a model from files."""

    @property
    def missing(self) -> str | None:
        """Why it cannot run here, or ``None``."""
        absent = [name for name in self.requires if find_spec(name) is None]
        if not absent:
            return None
        hint = f"; pip install 'hybrid-llm-engine[{self.extra}]'" if self.extra else ""
        return f"not installed: {', '.join(absent)}{hint}"


@dataclass(frozen=True, slots=True)
class ExecutorEntry:
    """One line of ``hybrid executors``."""

    name: str
    description: str
    available: bool
    reason: str | None
    """Why it is not available."""
    capabilities: Capabilities | None
    """``None`` where it is not available."""


BUILT_IN: Final = (
    ExecutorDescriptor(
        "torch",
        "hybrid.backends.pytorch.executor:TorchExecutor",
        "transformers' models with paged attention, CPU and CUDA",
        ("torch", "transformers", "safetensors", "gguf"),
        "torch",
    ),
    ExecutorDescriptor(
        "null",
        "hybrid.backends.null.executor:NullExecutor",
        "deterministic hash over the paged cache; for tests and plumbing",
        needs_model=False,
    ),
)
PREFERENCE: Final = ("torch",)
"""What ``executor="auto"`` takes, the first that is available."""


def create_executor(name: str, *, has_model: bool) -> Executor:
    """Make an executor by name; ``auto`` is the best that is installed.

    Raises:
        ConfigError: there is none of that name, what it needs is not installed, or it
            needs a model and there is none.
    """
    known = {descriptor.name: descriptor for descriptor in BUILT_IN}
    if name == "auto":
        name = next((n for n in PREFERENCE if known[n].missing is None), PREFERENCE[0])
    if name not in known:
        raise ConfigError(
            f"executor {name!r} is unknown{nearest_hint(name, known)}; "
            f"there are: auto, {', '.join(known)}"
        )
    descriptor = known[name]
    if descriptor.missing is not None:
        raise ConfigError(f"executor {name!r} cannot run here: {descriptor.missing}")
    if descriptor.needs_model and not has_model:
        raise ConfigError(
            f"executor {name!r} needs a model: a known name such as smollm2-135m "
            "(`hybrid models` lists them), a directory, a .gguf file, a Hugging Face id"
        )
    return _load(descriptor)


def check_api_version(capabilities: Capabilities) -> None:
    """Refuse an executor that was written against another contract.

    Raises:
        ConfigError: its major differs from ours, or its minor is newer.
    """
    major, minor = capabilities.api_version
    if major != API_VERSION[0] or minor > API_VERSION[1]:
        raise ConfigError(
            f"executor {capabilities.name!r} has API version {major}.{minor}, this "
            f"engine takes {API_VERSION[0]}.0 to {API_VERSION[0]}.{API_VERSION[1]}"
        )


def list_executors() -> tuple[ExecutorEntry, ...]:
    """Every executor and what it can do here; imports those that are installed."""
    return tuple(_entry(descriptor) for descriptor in BUILT_IN)


def _load(descriptor: ExecutorDescriptor) -> Executor:
    module_name, class_name = descriptor.class_path.split(":")
    executor = getattr(import_module(module_name), class_name)()
    assert isinstance(executor, Executor), f"{descriptor.class_path} is no Executor"
    return executor


def _entry(descriptor: ExecutorDescriptor) -> ExecutorEntry:
    reason = descriptor.missing
    capabilities = None
    if reason is None:
        try:
            capabilities = _load(descriptor).capabilities()
        except ImportError as error:
            reason = f"cannot be imported: {error}"
    return ExecutorEntry(
        descriptor.name, descriptor.description, reason is None, reason, capabilities
    )


def describe_features(capabilities: Capabilities) -> Sequence[str]:
    """Name what an executor can do beyond running a plan, for tables."""
    flags = {
        "logits": capabilities.returns_logits,
        "prefix reuse": capabilities.prefix_reuse,
        "chunked prefill": capabilities.chunked_prefill,
        "block copy": capabilities.block_copy,
        "prompt logprobs": capabilities.prompt_logprobs,
        "speculative verify": capabilities.speculative_verify,
    }
    return [name for name, can in flags.items() if can]
