"""The paged scheduler: vLLM V1's algorithm over a pool of ref-counted blocks.

There is no prefill phase and no decode phase: each step, every sequence's computed
tokens catch up with its tokens under one token budget, running sequences first.

Order of side effects: ``schedule()`` preempts, allocates and decides block copies;
``update()`` alone appends tokens, publishes blocks, forks and ends sequences.

Forward progress: sequences are served by rank and only the worst-ranked one is ever
preempted, so that the best-ranked one advances in every step; admission made sure that
it fits alone. Rows for prompt log-probabilities go by rank as well. Waiting sequences
own no block and are admitted by rank; who lacks nothing but such rows is passed over.
Who lacks budget for a whole block, where chunks are aligned, holds up no running one,
and every waiting one: their answers would take the same tokens from it in later steps.

Source of the algorithm: vLLM 0.32, ``vllm/v1/core/sched/scheduler.py``.
"""

from collections.abc import Sequence

from .admission import check_request
from .block_manager import BlockManager
from .config import SchedulerConfig
from .config_check import check_config
from .generate_request import GenerateRequest
from .interface import Scheduler, SchedulerStats, SequenceUpdate
from .kv_events import KvEvent
from .plan import SequenceKey, StepPlan
from .ranking import RankFunction, choose_rank, rank_request
from .scheduler_counters import SchedulerCounters
from .sequence_roster import SequenceRoster
from .sequence_state import SequenceState, SequenceStatus
from .step_builder import StepBuilder
from .stop_check import find_end


class PagedScheduler(Scheduler):
    """Continuous batching with chunked prefill, prefix cache and preemption.

    A waiting request never evicts a running one by itself, whatever its rank; it is
    next in line, and the worst-ranked gives way when blocks run out.

    Args:
        config: its limits.
        rank: a policy of the caller's own, in place of ``config.policy``; see
            ``RankFunction``. One that always ranks newcomers first starves the others.

    Raises:
        ConfigError: a value is out of range or contradicts another.
    """

    def __init__(
        self, config: SchedulerConfig, *, rank: RankFunction | None = None
    ) -> None:
        check_config(config)
        self._config = config
        self._rank = choose_rank(config.policy, rank)
        self._manager = BlockManager(config)
        self._roster = SequenceRoster(self._manager)
        self._counters = SchedulerCounters()
        # The plan that awaits its update, and the sequences behind its entries.
        self._plan: StepPlan | None = None
        self._planned: list[SequenceState] = []
        self._num_plans = 0
        self._num_added = 0

    def add(self, request: GenerateRequest) -> None:
        """Queue a request, or refuse what can never run; see ``admission``."""
        self._roster.check_unused(request.request_id)
        max_num_tokens = check_request(self._config, request)
        rank = (rank_request(self._rank, request), self._num_added, 0)
        self._num_added += 1
        self._roster.add(request, rank, max_num_tokens)

    def schedule(self) -> StepPlan:
        """Decide the next step.

        Raises:
            RuntimeError: the plan before this one was not empty and not updated.
        """
        if self._plan is not None:
            raise RuntimeError(f"step {self._plan.step} was planned and not updated")
        step = StepBuilder(self._config)
        if self._schedule_running(step):
            self._schedule_waiting(step)
        plan = StepPlan(
            step=self._num_plans,
            scheduled=step.scheduled,
            num_contexts=step.num_contexts,
            block_copies=self._manager.take_copies(),
            finished=self._roster.take_finished(),
            preempted=tuple(step.preempted),
        )
        self._num_plans += 1
        if plan.scheduled:
            self._plan, self._planned = plan, step.sequences
            self._counters.num_steps += 1
            self._counters.num_scheduled_tokens += step.num_scheduled_tokens
        return plan

    def update(
        self, plan: StepPlan, sampled: Sequence[Sequence[int]]
    ) -> tuple[SequenceUpdate, ...]:
        """Commit the step. Sequences that ended since the plan was made are left out.

        This scheduler plans no draft tokens: each entry gets exactly ``num_samples``
        tokens, never the longer accepted run that the interface allows for. The tokens
        of an ended sequence are not read: any placeholder serves.

        Raises:
            ValueError: the plan is not the last one, or ``sampled`` does not fit it;
                nothing was committed.
        """
        planned = self._take_planned(plan, sampled)
        block_size = self._config.block_size
        updates: list[SequenceUpdate] = []
        for entry, state, drawn in zip(plan.scheduled, planned, sampled, strict=True):
            if state.status is SequenceStatus.FINISHED:
                continue
            end = entry.num_computed_tokens + len(entry.token_ids)
            state.num_computed_tokens = end
            if end // block_size > state.table.num_committed_blocks:
                self._manager.commit(state.table, state.token_ids, end)
            if entry.num_logits_rows and state.wants_prompt_rows:
                state.num_prompt_rows_done = end
            if entry.num_samples == 1:
                updates.append(self._append(state, drawn[0]))
            elif entry.num_samples > 1:
                updates.extend(map(self._append, self._roster.fork(state), drawn))
        return tuple(updates)

    def stop(self, key: SequenceKey) -> None:
        """End one sequence now; its blocks are free before the next plan."""
        state = self._roster.find(key)
        if state is not None:
            self._roster.finish(state)

    def abort(self, request_id: str) -> bool:
        """End all sequences of a request now, in whatever state they are."""
        states = self._roster.find_request(request_id)
        for state in states:
            self._roster.finish(state)
        return bool(states)

    def has_unfinished(self) -> bool:
        """Whether any sequence waits or runs."""
        return len(self._roster) > 0

    def stats(self) -> SchedulerStats:
        """Counters and gauges of now; one dictionary entry per running sequence."""
        return self._counters.stats(
            self._manager.pool,
            self._config.block_size,
            running=self._roster.running.items,
            num_waiting=len(self._roster.waiting),
        )

    def reset_prefix_cache(self) -> bool:
        """Forget every cached block; ``False``, and nothing done, while one is owned.

        A sequence in mid-flight would publish KV from before the reset afterwards.
        """
        return self._manager.pool.reset_cache()

    def start_kv_events(self) -> tuple[KvEvent, ...]:
        """Record from now on; returns what leads from any state to the present one."""
        return self._manager.pool.start_events()

    def stop_kv_events(self) -> None:
        """Record no more."""
        self._manager.pool.events = None

    def take_kv_events(self) -> tuple[KvEvent, ...]:
        """What was recorded since the last call, in order."""
        events = self._manager.pool.events
        return () if events is None else events.take()

    def check_integrity(self) -> None:
        """Assert the invariants of pool, tables and queues; O(blocks + tokens)."""
        self._roster.check_integrity()
        assert self._roster.num_places <= self._config.max_num_seqs, "too many run"

    def _schedule_running(self, step: StepBuilder) -> bool:
        """Serve running sequences by rank; whether budget and blocks sufficed.

        One that lacks rows, or more budget than there is, keeps its blocks and waits.
        """
        running = self._roster.running.items
        index = 0
        # The list shrinks from its end while sequences are preempted.
        while index < len(running):
            state = running[index]
            num_tokens = len(state.token_ids)
            start = state.num_computed_tokens
            is_generation = num_tokens - start == 1 and num_tokens > state.prompt_len
            if is_generation:
                num_new = min(step.budget, 1)
            elif step.lacks_rows(state, start):
                num_new = 0
            else:
                num_new = step.num_new_tokens(state, start)
            if num_new == 0:
                if not step.budget:
                    return False
                step.owe_rest(state)
                index += 1
                continue
            while not self._manager.allocate(state.table, start + num_new):
                if self._preempt_last(step) is state:
                    return False
            if is_generation:
                step.add_generation(state)
            else:
                step.add_chunk(state, num_new)
            index += 1
        return not step.preempted

    def _schedule_waiting(self, step: StepBuilder) -> None:
        """Admit waiting sequences by rank as long as places, blocks and budget last.

        A sequence is admitted only if all its tokens fit beside all those of the
        running ones, computed or not, though a chunk takes less: prompts admitted on
        their first chunks would preempt each other midway.

        Only who lacks nothing but rows is passed over; the others behind it go on.
        """
        roster, manager = self._roster, self._manager
        index = 0
        while index < len(roster.waiting) and step.budget:
            state = roster.waiting.items[index]
            if roster.num_places + state.num_samples > self._config.max_num_seqs:
                return
            cached: tuple[int, ...] = ()
            if not state.wants_prompt_rows:
                cached = manager.find_cached_prefix(state.table, state.token_ids)
            num_owed = step.num_owed_blocks
            if not manager.can_allocate(cached, len(state.token_ids), num_owed):
                return
            start = len(cached) * self._config.block_size
            if step.lacks_rows(state, start):
                index += 1
                continue
            num_new = step.num_new_tokens(state, start)
            if num_new == 0:
                return
            if state.num_cached_tokens is None and self._config.enable_prefix_caching:
                self._count_lookup(state, start)
            roster.admit(state, cached)
            has_room = manager.allocate(state.table, start + num_new)
            assert has_room, "can_allocate promised more"
            step.add_chunk(state, num_new)

    def _count_lookup(self, state: SequenceState, num_cached_tokens: int) -> None:
        if not state.wants_prompt_rows:
            self._counters.num_prefix_queried_tokens += state.prompt_len
            self._counters.num_prefix_hit_tokens += num_cached_tokens

    def _preempt_last(self, step: StepBuilder) -> SequenceState:
        state = self._roster.preempt_last()
        step.preempted.append(state.key)
        self._counters.num_preemptions += 1
        return state

    def _take_planned(
        self, plan: StepPlan, sampled: Sequence[Sequence[int]]
    ) -> list[SequenceState]:
        """Check everything before anything is committed."""
        if not plan.scheduled and not sampled:
            return []
        if plan is not self._plan:
            raise ValueError(f"step {plan.step} is not the plan that awaits its update")
        wanted = [entry.num_samples for entry in plan.scheduled]
        given = list(map(len, sampled))
        if given != wanted:
            raise ValueError(
                f"step {plan.step} wants {wanted} sampled tokens per entry, got {given}"
            )
        planned, self._planned, self._plan = self._planned, [], None
        return planned

    def _append(self, state: SequenceState, token_id: int) -> SequenceUpdate:
        state.token_ids.append(token_id)
        end = find_end(state)
        if end is not None:
            self._roster.finish(state)
        return SequenceUpdate(
            state.request,
            state.rank[2],
            (token_id,),
            state.num_cached_tokens or 0,
            *(end or (None, None)),
        )
