"""Counters and gauges of an engine as one snapshot; names follow Prometheus' rules."""

from collections import Counter
from dataclasses import dataclass, field

from hybrid.scheduler import FinishReason, SchedulerStats, StepPlan

from .outputs import RequestMetrics


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """What an exporter would publish; counters (``_total``) never fall."""

    requests_total: int
    requests_finished_total: dict[str, int]
    """By finish reason."""
    prompt_tokens_total: int
    """Of finished requests."""
    generation_tokens_total: int
    """Drawn so far, over all requests."""
    prefix_cache_queries_total: int
    """Prompt tokens looked up."""
    prefix_cache_hits_total: int
    preemptions_total: int
    steps_total: int
    scheduled_tokens_total: int
    queue_seconds_sum: float
    """Over finished requests that ran."""
    ttft_seconds_sum: float
    """Over finished requests that got a token."""
    num_requests_running: int
    num_requests_waiting: int
    kv_block_size: int
    kv_capacity_tokens: int
    """Tokens that the KV pool holds."""
    kv_total_blocks: int
    kv_free_blocks: int
    kv_cached_idle_blocks: int
    kv_allocated_slots: int
    """Token slots in blocks that sequences own, shared ones once."""
    kv_used_slots: int
    kv_peak_allocated_slots: int
    """The most ever allocated after a step, and what was used of it then."""
    kv_peak_used_slots: int

    @property
    def kv_peak_waste(self) -> float:
        """Share of the slots that stood empty when most were allocated, 0 to 1."""
        if not self.kv_peak_allocated_slots:
            return 0.0
        return 1.0 - self.kv_peak_used_slots / self.kv_peak_allocated_slots


@dataclass(slots=True)
class EngineMetrics:
    """Collects; owned by the engine, written by its thread only."""

    num_requests: int = 0
    num_generated_tokens: int = 0
    num_prompt_tokens: int = 0
    queue_s: float = 0.0
    ttft_s: float = 0.0
    peak_allocated_slots: int = 0
    peak_used_slots: int = 0
    finished: Counter[str] = field(default_factory=Counter)

    def observe_finished(self, reason: FinishReason, metrics: RequestMetrics) -> None:
        """Count one request that has ended."""
        self.finished[reason.value] += 1
        self.num_prompt_tokens += metrics.num_prompt_tokens
        self.queue_s += metrics.queue_s or 0.0
        self.ttft_s += metrics.ttft_s or 0.0

    def observe_pool(self, stats: SchedulerStats) -> None:
        """Remember the fullest that the pool has been."""
        if stats.num_allocated_slots > self.peak_allocated_slots:
            self.peak_allocated_slots = stats.num_allocated_slots
            self.peak_used_slots = stats.num_used_slots

    def snapshot(self, stats: SchedulerStats, block_size: int) -> EngineSnapshot:
        """Freeze the present state."""
        return EngineSnapshot(
            requests_total=self.num_requests,
            requests_finished_total=dict(self.finished),
            prompt_tokens_total=self.num_prompt_tokens,
            generation_tokens_total=self.num_generated_tokens,
            prefix_cache_queries_total=stats.num_prefix_queried_tokens,
            prefix_cache_hits_total=stats.num_prefix_hit_tokens,
            preemptions_total=stats.num_preemptions,
            steps_total=stats.num_steps,
            scheduled_tokens_total=stats.num_scheduled_tokens,
            queue_seconds_sum=self.queue_s,
            ttft_seconds_sum=self.ttft_s,
            num_requests_running=stats.num_running,
            num_requests_waiting=stats.num_waiting,
            kv_block_size=block_size,
            kv_capacity_tokens=stats.num_total_blocks * block_size,
            kv_total_blocks=stats.num_total_blocks,
            kv_free_blocks=stats.num_free_blocks,
            kv_cached_idle_blocks=stats.num_cached_idle_blocks,
            kv_allocated_slots=stats.num_allocated_slots,
            kv_used_slots=stats.num_used_slots,
            kv_peak_allocated_slots=self.peak_allocated_slots,
            kv_peak_used_slots=self.peak_used_slots,
        )


def takes_blocks(plan: StepPlan, block_size: int) -> bool:
    """Whether the pool can be fuller after ``plan``: a token of it begins a block."""
    if plan.block_copies:
        return True
    for entry in plan.scheduled:  # no generator: asked of each sequence each step
        if -entry.num_computed_tokens % block_size < len(entry.token_ids):
            return True
    return False
