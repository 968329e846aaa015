"""Decides what runs: requests, step plans, block pool. No tensor, no model, no text."""

from .config import SchedulerConfig, SchedulingPolicy
from .errors import (
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
from .generate_request import GenerateRequest
from .interface import FinishReason, Scheduler, SchedulerStats, SequenceUpdate
from .kv_events import BlocksRemoved, BlocksStored, CacheCleared, KvEvent
from .plan import BlockCopy, ScheduledRequest, SequenceKey, StepPlan
from .ranking import RankFunction
from .sampling_params import SamplingParams
from .scheduler import PagedScheduler
from .structured_output import GrammarKind, StructuredOutput

__all__ = [
    "BlockCopy",
    "BlocksRemoved",
    "BlocksStored",
    "CacheCleared",
    "CheckpointError",
    "ConfigError",
    "DuplicateRequest",
    "EngineClosed",
    "EngineFailed",
    "ExecutorFailed",
    "FinishReason",
    "FormFailed",
    "GenerateRequest",
    "GrammarKind",
    "HybridError",
    "InvalidRequest",
    "KvEvent",
    "ModelNotFound",
    "OutOfBlocks",
    "Overloaded",
    "PagedScheduler",
    "PluginError",
    "RankFunction",
    "RequestTooLong",
    "SamplingFailed",
    "SamplingParams",
    "ScheduledRequest",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerStats",
    "SchedulingPolicy",
    "SequenceKey",
    "SequenceUpdate",
    "StepPlan",
    "StructuredOutput",
    "UnsupportedFeature",
]
