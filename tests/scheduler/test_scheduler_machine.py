"""Random traffic on random tiny schedulers, all invariants checked at every step."""

from typing import Any
from zlib import crc32

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from hybrid.scheduler import (
    GenerateRequest,
    InvalidRequest,
    RankFunction,
    SchedulingPolicy,
    SequenceKey,
)
from tests.scheduler.driver import Driver
from tests.scheduler.factories import make_request
from tests.scheduler.kv_replay import KvReplay


def draw(key: SequenceKey, index: int) -> int:
    """Four ids, so that prefixes meet; id 0 is the end."""
    return crc32(f"{key.request_id}/{key.sample_index}/{index}".encode()) % 7 % 4


@st.composite
def configs(draw_from: st.DrawFn) -> dict[str, object]:
    """Tiny pools and budgets, all features on and off."""
    integers, mostly = st.integers, st.sampled_from([True, True, True, False])
    chunked, aligned = draw_from(mostly), draw_from(st.booleans())
    max_model_len = draw_from(st.sampled_from([6, 10, 16, 24]))
    block_size = draw_from(integers(1, 4))
    least = block_size if aligned else 1
    budget = integers(least, 32) if chunked else integers(max_model_len, 40)
    # From less than one longest sequence to several.
    num_blocks = max_model_len // block_size + draw_from(integers(-2, 8))
    return {
        "block_size": block_size,
        "num_blocks": max(num_blocks, 1),
        "max_model_len": max_model_len,
        "max_num_seqs": draw_from(st.sampled_from([1, 2, 3, 4, 6])),
        "max_num_batched_tokens": draw_from(budget),
        "max_prefill_chunk_tokens": draw_from(
            st.none() | integers(least, 5) if chunked else st.none()
        ),
        "max_prompt_logprobs_tokens": draw_from(integers(least, 6)),
        "enable_prefix_caching": draw_from(mostly),
        "enable_chunked_prefill": chunked,
        "align_chunks": aligned,
        "supports_block_copy": draw_from(mostly),
        "policy": draw_from(st.sampled_from(SchedulingPolicy)),
    }


def by_hash(request: GenerateRequest) -> tuple[float, ...]:
    """Tuples of any length, as unrelated to order and size as can be."""
    mixed = crc32(request.request_id.encode())
    return tuple(float(mixed >> shift & 3) for shift in range(mixed % 4))


RANKS: dict[str, RankFunction | None] = {
    "policy": None,
    "hash": by_hash,
    "shortest": lambda request: len(request.prompt_token_ids),
    "latest": lambda request: -int(request.request_id[1:]),
}
"""Policies by name, so that a failing example says which."""

REQUESTS = st.fixed_dictionaries(
    {
        "prompt": st.builds(
            lambda family, length: family[:length],
            st.sampled_from([(1, 1, 2, 3) * 6, (1, 1, 2, 2) * 6]),
            st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 20]),
        ),
        "max_tokens": st.none() | st.integers(1, 12),
        "n": st.sampled_from([1, 1, 2, 3]),
        "priority": st.integers(0, 2),
        "arrival_time_s": st.sampled_from([0.0, 1.0]),
        "ignore_eos": st.booleans(),
        "min_tokens": st.sampled_from([0, 0, 1]),
        "prompt_logprobs": st.sampled_from([None, None, None, 1]),
        "stop_token_ids": st.sampled_from([(), (), (3,)]),
        "cache_salt": st.sampled_from([None, None, None, "x"]),
        "adapter": st.sampled_from([None, None, None, "x"]),
    }
)


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, steps, aborts and stops at random; the driver checks each step."""

    driver: Driver

    @initialize(config=configs(), rank=st.sampled_from(sorted(RANKS)))
    def start(self, config: dict[str, object], rank: str) -> None:
        """Make a scheduler of a built-in policy or of one function."""
        if RANKS[rank] is not None:
            config = config | {"policy": SchedulingPolicy.FCFS}
        self.driver = Driver(draw, rank=RANKS[rank], **config)
        self.num_added = 0
        self.early = KvReplay(self.driver.scheduler)

    @rule(burst=st.lists(REQUESTS, min_size=1, max_size=4))
    def add(self, burst: list[dict[str, Any]]) -> None:
        """Queue requests, or see them refused without a trace."""
        for fields in burst:
            self.num_added += 1
            request = make_request(f"r{self.num_added}", **fields)
            before = self.driver.scheduler.stats()
            try:
                self.driver.add(request)
            except InvalidRequest:
                assert self.driver.scheduler.stats() == before

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        """Run some steps."""
        for _ in range(count):
            self.driver.step()

    @rule(pick=st.integers(0, 99), between=st.booleans(), whole=st.booleans())
    def end_one(self, pick: int, *, between: bool, whole: bool) -> None:
        """Abort or stop something, perhaps while its step is being computed."""
        plan = self.driver.plan() if between else None
        live = sorted(self.driver.live)
        key = live[pick % len(live)] if live else SequenceKey("unknown", 0)
        for _ in range(2):
            if whole:
                self.driver.abort(key.request_id)
            else:
                self.driver.stop(key)
        if plan is not None:
            self.driver.commit(plan)

    @rule(chance=st.integers(0, 3))
    def interrupt(self, chance: int) -> None:
        """Break off a step: what it had not computed is never found."""
        if not chance:
            self.driver.interrupt()

    @rule(chance=st.integers(0, 4))
    def reset_prefix_cache(self, chance: int) -> None:
        """Possible exactly when no block is owned."""
        if chance:
            return
        stats = self.driver.scheduler.stats()
        is_idle = stats.num_free_blocks == stats.num_total_blocks
        assert self.driver.scheduler.reset_prefix_cache() == is_idle
        if is_idle:
            assert self.driver.scheduler.stats().num_cached_idle_blocks == 0

    @rule()
    def subscribe_late(self) -> None:
        """Whoever asks now for the findable blocks is told what others replayed."""
        self.early.update()
        assert KvReplay(self.driver.scheduler).blocks == self.early.blocks

    @invariant()
    def is_whole(self) -> None:
        """Pool, tables and queues agree, and so does who replays the KV events."""
        self.driver.scheduler.check_integrity()
        self.early.update()

    def teardown(self) -> None:
        """Every request ends, in bounded steps, and with the true answer."""
        if not hasattr(self, "driver"):
            return
        self.driver.run()
        for key in self.driver.reasons:
            request = self.driver.requests[key.request_id]
            outputs: list[int] = []
            while not outputs or self.driver.expected_end(request, outputs) is None:
                outputs.append(draw(key, len(outputs)))
            assert self.driver.outputs[key] == outputs


SchedulerMachine.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestSchedulerMachine = SchedulerMachine.TestCase
