"""What one scheduler counted since its start."""

from collections.abc import Sequence
from dataclasses import dataclass

from .block_pool import BlockPool
from .interface import SchedulerStats
from .sequence_state import SequenceState


@dataclass(slots=True)
class SchedulerCounters:
    """Mutable; no field ever falls. Meanings as in ``SchedulerStats``."""

    num_preemptions: int = 0
    num_prefix_queried_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    num_steps: int = 0
    num_scheduled_tokens: int = 0

    def stats(
        self,
        pool: BlockPool,
        block_size: int,
        *,
        running: Sequence[SequenceState],
        num_waiting: int,
    ) -> SchedulerStats:
        """Freeze these counters beside the gauges of now."""
        num_allocated = pool.num_owned * block_size
        # Only the end of a table can be empty; sharers of a tail are equally far.
        unused = {
            state.table.block_ids[-1]: state.table.num_slots - state.num_computed_tokens
            for state in running
            if state.table.block_ids
        }
        return SchedulerStats(
            num_waiting=num_waiting,
            num_running=len(running),
            num_total_blocks=pool.num_blocks,
            num_free_blocks=pool.num_free,
            num_cached_idle_blocks=pool.num_cached_idle,
            num_allocated_slots=num_allocated,
            num_used_slots=num_allocated - sum(unused.values()),
            num_preemptions=self.num_preemptions,
            num_prefix_queried_tokens=self.num_prefix_queried_tokens,
            num_prefix_hit_tokens=self.num_prefix_hit_tokens,
            num_steps=self.num_steps,
            num_scheduled_tokens=self.num_scheduled_tokens,
        )
