"""Paged answers are the unpaged ones, however the work is cut up and shared."""

import random
from typing import Any

import pytest

from hybrid.engine import HybridEngine
from hybrid.outputs import RequestOutput

from .bench import Bench
from .engine_run import check_whole, finish, fresh_ids, run
from .executor_case import ExecutorCase
from .workload import GREEDY, TokenIds


class CorrectnessTests(ExecutorCase):
    """Every token is the reference's."""

    def test_a_mixed_batch_gives_the_right_tokens(
        self, every_bench: Bench, chunk: int | None
    ) -> None:
        """Chunks of prompts run beside decode tokens of other lengths."""
        prompts = every_bench.workload.prompts
        outputs = every_bench.run(prompts, max_prefill_chunk_tokens=chunk)
        every_bench.check(prompts, outputs, f"together, chunk {chunk}")

    def test_each_prompt_alone_gives_the_right_tokens(self, every_bench: Bench) -> None:
        """No answer depends on what shares the batch."""
        prompts = every_bench.workload.prompts
        outputs = [every_bench.run([prompt])[0] for prompt in prompts]
        every_bench.check(prompts, outputs, "each alone")

    @pytest.mark.parametrize("num_steps", [1, 3])
    def test_prompts_that_join_midway_give_the_right_tokens(
        self, bench: Bench, num_steps: int
    ) -> None:
        """A prompt is prefilled beside others that have answered for a while."""
        prompts = bench.workload.prompts
        for order in (prompts, prompts[::-1]):
            outputs = _run_staggered(bench.engine(), order, num_steps)
            bench.check(order, outputs, f"one more every {num_steps} steps")

    @pytest.mark.parametrize("max_num_seqs", [1, 3])
    def test_a_small_budget_gives_the_right_tokens(
        self, bench: Bench, max_num_seqs: int
    ) -> None:
        """Prompts that wait for their turn lose nothing."""
        prompts = bench.workload.prompts
        limits: dict[str, Any] = {"max_num_seqs": max_num_seqs}
        if bench.capabilities.chunked_prefill:
            limits["max_num_batched_tokens"] = 11
        outputs = bench.run(prompts, **limits)
        bench.check(prompts, outputs, str(limits))

    @pytest.mark.parametrize("max_chunk", [7, None])
    @pytest.mark.parametrize("caching", [False, True])
    def test_preempted_requests_give_the_right_tokens(
        self, every_bench: Bench, max_chunk: int | None, *, caching: bool
    ) -> None:
        """A pool that cannot hold all at once only costs time."""
        can = every_bench.capabilities
        prompts = every_bench.workload.growing
        engine = every_bench.engine(
            num_blocks=every_bench.workload.tight_num_blocks,
            max_prefill_chunk_tokens=max_chunk if can.chunked_prefill else None,
            enable_prefix_caching=caching and can.prefix_reuse,
        )
        outputs = run(engine, prompts, GREEDY)
        every_bench.check(prompts, outputs, f"preempted, {max_chunk=}, {caching=}")
        assert engine.stats().preemptions_total > 0, "the pool was not small enough"

    def test_the_same_run_twice_gives_the_same_tokens(self, bench: Bench) -> None:
        """Nothing is left of the first run, and nothing is left to chance."""
        prompts = bench.workload.prompts
        first, second = (
            [output.outputs[0].token_ids for output in bench.run(prompts)]
            for _ in range(2)
        )
        assert first == second, f"{bench.label}: two equal runs differ"

    @pytest.mark.parametrize("seed", range(4))
    def test_any_traffic_gives_the_right_tokens(self, bench: Bench, seed: int) -> None:
        """Arrivals, aborts, chunks and a narrow pool, as they come."""
        rng, work = random.Random(seed), bench.workload
        can = bench.capabilities
        limits: dict[str, Any] = {
            "num_blocks": work.narrow_num_blocks + rng.randint(0, 4),
            "max_num_seqs": rng.randint(2, 8),
        }
        if can.chunked_prefill:
            limits["max_num_batched_tokens"] = rng.randint(8, 64)
        engine = bench.engine(**limits)
        prompts = rng.choices((*work.prompts, *work.growing), k=24)
        answered, outputs = _run_traffic(engine, prompts, rng)
        bench.check(answered, outputs, f"traffic {seed}, {limits}")
        assert len(answered) >= len(prompts) // 2, "too little was left to be answered"


def _run_traffic(
    engine: HybridEngine, prompts: list[TokenIds], rng: random.Random
) -> tuple[list[TokenIds], list[RequestOutput]]:
    """Add and abort at random until all is done: what was answered, and how."""
    waiting = dict(zip(fresh_ids(len(prompts)), prompts, strict=True))
    asked = dict(waiting)
    done: dict[str, RequestOutput] = {}
    while waiting or engine.has_unfinished_requests():
        while waiting and rng.random() < 0.4:
            request_id, prompt = waiting.popitem()
            engine.add_request(request_id, prompt, GREEDY, stream=False)
        if rng.random() < 0.1:
            victim = rng.choice(list(asked))
            if engine.abort(victim) is not None:
                del asked[victim]
        done |= {output.request_id: output for output in engine.step()}
    check_whole(engine)
    ids = [request_id for request_id in asked if request_id in done]
    return [asked[request_id] for request_id in ids], [done[i] for i in ids]


def _run_staggered(
    engine: HybridEngine, prompts: tuple[TokenIds, ...], num_steps: int
) -> list[RequestOutput]:
    """Add one prompt after the other, some steps apart; run all to the end."""
    done: dict[str, RequestOutput] = {}
    ids = fresh_ids(len(prompts))
    for request_id, prompt in zip(ids, prompts, strict=True):
        engine.add_request(request_id, prompt, GREEDY, stream=False)
        for _ in range(num_steps):
            done |= {output.request_id: output for output in engine.step()}
    done |= finish(engine)
    return [done[request_id] for request_id in ids]
