"""What one scheduler counted since its start."""

from dataclasses import dataclass


@dataclass(slots=True)
class SchedulerCounters:
    """Mutable; no field ever falls. Meanings as in ``SchedulerStats``."""

    num_preemptions: int = 0
    num_prefix_queried_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    num_steps: int = 0
    num_scheduled_tokens: int = 0
