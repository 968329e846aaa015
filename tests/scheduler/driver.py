"""Drives a scheduler as an engine would and holds every step against its promises."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from hybrid.scheduler import (
    FinishReason,
    GenerateRequest,
    PagedScheduler,
    RankFunction,
    ScheduledRequest,
    SequenceKey,
    SequenceUpdate,
    StepPlan,
)
from tests.scheduler.factories import EOS, make_config
from tests.scheduler.fake_kv import FakeKV

Draw = Callable[[SequenceKey, int], int]
"""The token a model would draw for a sequence at an output index."""


def never_ending(key: SequenceKey, index: int) -> int:
    """Ids that differ per sample and index and end nothing."""
    return 10 + 100 * key.sample_index + index


class Driver:
    """A scheduler, a fake KV pool, and what is true about every sequence."""

    def __init__(
        self,
        draw: Draw = never_ending,
        *,
        rank: RankFunction | None = None,
        **config: Any,
    ) -> None:
        self.config = make_config(**config)
        self.scheduler = PagedScheduler(self.config, rank=rank)
        self.draw = draw
        self.kv = FakeKV(self.config.num_blocks, self.config.block_size)
        self.requests: dict[str, GenerateRequest] = {}
        self.outputs: dict[SequenceKey, list[int]] = {}
        self.reasons: dict[SequenceKey, FinishReason] = {}
        self.live: set[SequenceKey] = set()
        self.unreported: set[SequenceKey] = set()
        self.cached: dict[str, int] = {}
        self.plans: list[StepPlan] = []
        self.last_stats = self.scheduler.stats()

    def add(self, request: GenerateRequest) -> None:
        """Queue a request."""
        self.scheduler.add(request)
        self.requests[request.request_id] = request
        key = SequenceKey(request.request_id, 0)
        self.outputs[key] = []
        self.cached.pop(request.request_id, None)
        self.live.add(key)

    def abort(self, request_id: str) -> bool:
        """Abort a request; the answer and the pool are checked."""
        ended = {key for key in self.live if key.request_id == request_id}
        known = self.scheduler.abort(request_id)
        assert known == bool(ended)
        self._end(ended)
        self.scheduler.check_integrity()
        return known

    def stop(self, key: SequenceKey) -> None:
        """Stop one sequence from outside."""
        self.scheduler.stop(key)
        self._end({key} & self.live)
        self.scheduler.check_integrity()

    def plan(self) -> StepPlan:
        """Schedule, check the plan, run it on the fake pool."""
        plan = self._schedule()
        self.kv.run(plan, self._true_tokens)
        return plan

    def interrupt(self) -> StepPlan:
        """A step that breaks off half-way: its requests end, placeholders are drawn."""
        plan = self._schedule()
        self.kv.spoil(plan)
        for entry in plan.scheduled:
            self.abort(entry.request.request_id)
        placeholders = [(EOS,) * entry.num_samples for entry in plan.scheduled]
        cached = self.scheduler.stats().num_cached_idle_blocks
        assert self.scheduler.update(plan, placeholders) == ()
        assert self.scheduler.stats().num_cached_idle_blocks == cached
        self.scheduler.check_integrity()
        return plan

    def commit(self, plan: StepPlan) -> tuple[SequenceUpdate, ...]:
        """Draw, update, check what the scheduler says about it."""
        sampled = [self._draw_all(entry) for entry in plan.scheduled]
        live = set(self.live)
        updates = self.scheduler.update(plan, sampled)
        expected = [
            (SequenceKey(entry.key.request_id, entry.sample_index + j), token_id)
            for entry, drawn in zip(plan.scheduled, sampled, strict=True)
            if entry.key in live
            for j, token_id in enumerate(drawn)
        ]
        got = [(SequenceKey(u.request.request_id, u.sample_index), u) for u in updates]
        assert [(key, (token_id,)) for key, token_id in expected] == [
            (key, update.new_token_ids) for key, update in got
        ]
        for key, update in got:
            self._check_update(key, update)
        self.scheduler.check_integrity()
        self._check_stats()
        return updates

    def step(self) -> tuple[StepPlan, tuple[SequenceUpdate, ...]]:
        """One step, checked."""
        plan = self.plan()
        return plan, self.commit(plan)

    def run(self, max_steps: int | None = None) -> int:
        """Step until all is done; fails beyond the bound. Returns the steps taken."""
        lengths = [
            self._limit(self.requests[key.request_id])
            * self.requests[key.request_id].sampling_params.n
            for key in self.live
        ]
        bound = max_steps or sum(lengths) * (len(lengths) + 1) + 10
        steps = 0
        while self.scheduler.has_unfinished():
            steps += 1
            assert steps <= bound, "no forward progress"
            plan, _ = self.step()
            assert plan.scheduled, "unfinished requests and nothing to run"
        self.check_idle()
        return steps

    def check_idle(self) -> None:
        """The pool is whole and every end was told."""
        plan = self.plan()
        assert not plan.scheduled
        assert not self.scheduler.has_unfinished()
        assert not self.live
        stats = self.scheduler.stats()
        assert stats.num_free_blocks == stats.num_total_blocks
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        assert (stats.num_allocated_slots, stats.num_used_slots) == (0, 0)

    def _schedule(self) -> StepPlan:
        plan = self.scheduler.schedule()
        self.plans.append(plan)
        self.scheduler.check_integrity()
        for key in plan.finished:
            self.unreported.remove(key)
        assert not self.unreported, "an end was not reported"
        assert len(set(plan.preempted)) == len(plan.preempted)
        assert set(plan.preempted) <= self.live
        assert not {entry.key for entry in plan.scheduled} & set(plan.preempted)
        self._check_budget(plan)
        self._check_rows(plan)
        self._check_order(plan)
        for entry in plan.scheduled:
            assert entry.key in self.live
            self._check_entry(entry)
        return plan

    def _end(self, keys: set[SequenceKey]) -> None:
        self.live -= keys
        self.unreported |= keys

    def _limit(self, request: GenerateRequest) -> int:
        config, params = self.config, request.sampling_params
        num_prompt = len(request.prompt_token_ids)
        if params.max_tokens is None:
            pool = config.num_blocks * config.block_size
            return min(config.max_model_len, pool + 1)
        return min(config.max_model_len, num_prompt + params.max_tokens)

    def _true_tokens(self, entry: ScheduledRequest) -> list[int]:
        return [*entry.request.prompt_token_ids, *self.outputs[entry.key]]

    def _draw_all(self, entry: ScheduledRequest) -> list[int]:
        if entry.num_samples == 0:
            return []
        if entry.num_samples == 1:
            return [self.draw(entry.key, len(self.outputs[entry.key]))]
        request_id = entry.request.request_id
        return [
            self.draw(SequenceKey(request_id, j), 0) for j in range(entry.num_samples)
        ]

    def _check_budget(self, plan: StepPlan) -> None:
        config = self.config
        assert plan.num_scheduled_tokens <= config.max_num_batched_tokens
        places = sum(max(entry.num_samples, 1) for entry in plan.scheduled)
        assert places <= config.max_num_seqs
        if config.max_prefill_chunk_tokens is not None:
            for entry in plan.scheduled:
                assert len(entry.token_ids) <= config.max_prefill_chunk_tokens

    def _check_rows(self, plan: StepPlan) -> None:
        """Rows for prompt log-probabilities, of the whole step."""
        rows = [
            entry.num_logits_rows
            for entry in plan.scheduled
            if entry.request.sampling_params.prompt_logprobs is not None
            and entry.num_logits_rows
            and not self.outputs[entry.key]
        ]
        is_alone = not self.config.enable_chunked_prefill and len(rows) == 1
        assert is_alone or sum(rows) <= self.config.max_prompt_logprobs_tokens

    def _check_order(self, plan: StepPlan) -> None:
        kinds = [
            len(entry.token_ids) == 1 and bool(self.outputs[entry.key])
            for entry in plan.scheduled
        ]
        assert kinds == sorted(kinds), "a generation stands before a context"
        assert plan.num_contexts == kinds.count(False)

    def _check_entry(self, entry: ScheduledRequest) -> None:
        tokens = self._true_tokens(entry)
        start, end = (
            entry.num_computed_tokens,
            entry.num_computed_tokens + len(entry.token_ids),
        )
        assert start < end <= len(tokens)
        is_last = end == len(tokens)
        assert is_last or self.config.enable_chunked_prefill
        is_whole = end % self.config.block_size == 0
        assert is_last or is_whole or not self.config.align_chunks
        is_forked = bool(self.outputs[entry.key])
        num_samples = 1 if is_forked else entry.request.sampling_params.n
        assert entry.num_samples == (num_samples if is_last else 0)
        if entry.request.sampling_params.prompt_logprobs is None or is_forked:
            assert entry.num_logits_rows == int(is_last)
            return
        assert entry.num_logits_rows >= int(is_last)

    def _check_update(self, key: SequenceKey, update: SequenceUpdate) -> None:
        request, params = update.request, update.request.sampling_params
        self.live.add(key)
        outputs = self.outputs.setdefault(key, [])
        outputs.extend(update.new_token_ids)
        if len(outputs) == 1 and params.prompt_logprobs is not None:
            wanted = dict.fromkeys(range(len(request.prompt_token_ids)), 1)
            assert self._prompt_rows(request) == wanted
        cached = self.cached.setdefault(request.request_id, update.num_cached_tokens)
        assert update.num_cached_tokens == cached < len(request.prompt_token_ids)
        assert update.finish_reason == self.expected_end(request, outputs)
        if update.finish_reason is not None:
            self.reasons[key] = update.finish_reason
            self._end({key})

    def _prompt_rows(self, request: GenerateRequest) -> dict[int, int]:
        """How often each prompt position's logits were computed."""
        rows: Counter[int] = Counter()
        for plan in self.plans:
            for entry in plan.scheduled:
                if entry.request is request and entry.sample_index == 0:
                    end = entry.num_computed_tokens + len(entry.token_ids)
                    rows.update(range(end - entry.num_logits_rows, end))
        return dict(rows)

    def expected_end(
        self, request: GenerateRequest, outputs: list[int]
    ) -> FinishReason | None:
        """The stop rules, said once more in the plainest way."""
        params = request.sampling_params
        ends = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
        if outputs[-1] in ends and len(outputs) > params.min_tokens:
            return FinishReason.STOP
        if len(request.prompt_token_ids) + len(outputs) >= self._limit(request):
            return FinishReason.LENGTH
        return None

    def _check_stats(self) -> None:
        stats, last = self.scheduler.stats(), self.last_stats
        for name in (
            "num_preemptions",
            "num_prefix_queried_tokens",
            "num_prefix_hit_tokens",
            "num_steps",
            "num_scheduled_tokens",
        ):
            assert getattr(stats, name) >= getattr(last, name), f"{name} fell"
        assert stats.num_prefix_hit_tokens <= stats.num_prefix_queried_tokens
        assert 0 <= stats.num_used_slots <= stats.num_allocated_slots
        num_owned = stats.num_total_blocks - stats.num_free_blocks
        assert stats.num_allocated_slots == num_owned * self.config.block_size
        self.last_stats = stats
