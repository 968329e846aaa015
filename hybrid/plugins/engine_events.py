"""What the lifecycle hooks are told: frozen values, never the live engine."""

from dataclasses import dataclass

from hybrid.scheduler.plan import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStarted:
    """An engine is ready: its model is loaded, its pool allocated."""

    model: str | None
    """As it was resolved; ``None``: the executor runs without one."""
    architecture: str
    executor: str
    device: str
    dtype: str
    max_model_len: int
    """Most tokens of a request, prompt and answer together."""
    block_size: int
    """Tokens per KV block."""
    num_blocks: int
    """Usable KV blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished:
    """One step was planned, executed, sampled and committed."""

    plan: StepPlan
    total_s: float
    """Seconds from the making of the plan to the outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStopped:
    """An engine has ended, and every request with it."""

    error: str | None
    """What ended it; ``None``: it was closed."""
    num_requests: int
    """Requests that it took since its start."""
