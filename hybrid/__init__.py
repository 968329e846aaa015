"""One paged scheduler, any executor.

Names are imported when they are first used: importing this package loads no numpy, no
torch and no model code.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ._version import __version__

if TYPE_CHECKING:
    from .async_engine import AsyncHybridEngine
    from .engine import HybridEngine
    from .engine_builder import build_engine
    from .engine_config import EngineConfig
    from .llm import LLM
    from .outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
    from .scheduler.errors import (
        CheckpointError,
        ConfigError,
        DuplicateRequest,
        EngineClosed,
        EngineFailed,
        ExecutorFailed,
        FormFailed,
        HybridError,
        InvalidRequest,
        ModelNotFound,
        OutOfBlocks,
        Overloaded,
        PluginError,
        RequestTooLong,
        SamplingFailed,
        UnsupportedFeature,
    )
    from .scheduler.interface import FinishReason
    from .scheduler.sampling_params import SamplingParams
    from .scheduler.structured_output import GrammarKind, StructuredOutput

_HOMES: Final = {
    "AsyncHybridEngine": ".async_engine",
    "HybridEngine": ".engine",
    "build_engine": ".engine_builder",
    "EngineConfig": ".engine_config",
    "LLM": ".llm",
    "CompletionOutput": ".outputs",
    "Logprob": ".outputs",
    "RequestMetrics": ".outputs",
    "RequestOutput": ".outputs",
    "CheckpointError": ".scheduler.errors",
    "ConfigError": ".scheduler.errors",
    "DuplicateRequest": ".scheduler.errors",
    "EngineClosed": ".scheduler.errors",
    "EngineFailed": ".scheduler.errors",
    "ExecutorFailed": ".scheduler.errors",
    "FormFailed": ".scheduler.errors",
    "HybridError": ".scheduler.errors",
    "InvalidRequest": ".scheduler.errors",
    "ModelNotFound": ".scheduler.errors",
    "OutOfBlocks": ".scheduler.errors",
    "Overloaded": ".scheduler.errors",
    "PluginError": ".scheduler.errors",
    "RequestTooLong": ".scheduler.errors",
    "SamplingFailed": ".scheduler.errors",
    "UnsupportedFeature": ".scheduler.errors",
    "FinishReason": ".scheduler.interface",
    "SamplingParams": ".scheduler.sampling_params",
    "GrammarKind": ".scheduler.structured_output",
    "StructuredOutput": ".scheduler.structured_output",
}

__all__ = [
    "LLM",
    "AsyncHybridEngine",
    "CheckpointError",
    "CompletionOutput",
    "ConfigError",
    "DuplicateRequest",
    "EngineClosed",
    "EngineConfig",
    "EngineFailed",
    "ExecutorFailed",
    "FinishReason",
    "FormFailed",
    "GrammarKind",
    "HybridEngine",
    "HybridError",
    "InvalidRequest",
    "Logprob",
    "ModelNotFound",
    "OutOfBlocks",
    "Overloaded",
    "PluginError",
    "RequestMetrics",
    "RequestOutput",
    "RequestTooLong",
    "SamplingFailed",
    "SamplingParams",
    "StructuredOutput",
    "UnsupportedFeature",
    "__version__",
    "build_engine",
]


def __getattr__(name: str) -> Any:
    """Import a public name's module when the name is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
