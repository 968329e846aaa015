"""Blocks that several sequences share: prefix reuse and copy on write."""

from dataclasses import replace

import numpy as np
import pytest

from hybrid.scheduler import (
    BlockCopy,
    GenerateRequest,
    ScheduledRequest,
    StepPlan,
)

from .bench import Bench
from .engine_run import fresh_ids, run
from .executor_case import ExecutorCase
from .workload import GREEDY, WILD, TokenIds

NUM_SAMPLES = 3


class SharingTests(ExecutorCase):
    """Shared blocks answer as own blocks do."""

    def test_a_cached_prefix_gives_the_right_tokens(self, every_bench: Bench) -> None:
        """Cold, warm, and after other traffic; what was cached is reported."""
        every_bench.require("prefix_reuse")
        work, engine = every_bench.workload, every_bench.engine()
        cold = run(engine, work.prompts, GREEDY)
        warm = run(engine, work.prompts, GREEDY)
        run(engine, work.growing, GREEDY)
        later = run(engine, work.prompts, GREEDY)
        for setting, outputs in (("cold", cold), ("warm", warm), ("later", later)):
            every_bench.check(work.prompts, outputs, f"{setting} prefix cache")
        size = every_bench.loaded.block_size
        for output in (*warm, *later):
            # The last token of a prompt is computed anew, and its block with it.
            most = (len(output.prompt_token_ids) - 1) // size * size
            assert output.metrics.num_cached_tokens == most, every_bench.label

    def test_a_prompt_of_whole_blocks_is_answered_from_the_cache(
        self, every_bench: Bench
    ) -> None:
        """Where every block is cached, the last one is computed again."""
        every_bench.require("prefix_reuse")
        size = every_bench.loaded.block_size
        prompts = [every_bench.workload.shared_prefix[:size]]
        if size <= 16:
            prompts = [(prompts[0] * 32)[: 2 * 16]]
        engine = every_bench.engine()
        for setting in ("cold", "warm"):
            outputs = run(engine, prompts, GREEDY)
            every_bench.check(prompts, outputs, f"whole blocks, {setting}")
        assert outputs[0].metrics.num_cached_tokens == len(prompts[0]) - size

    def test_a_prefix_is_shared_while_its_owner_answers(self, bench: Bench) -> None:
        """A block is read by two sequences at once, each at its own step."""
        bench.require("prefix_reuse")
        prompts = bench.workload.prompts[-3:]
        engine = bench.engine()
        first, *others = fresh_ids(len(prompts))
        engine.add_request(first, prompts[0], GREEDY, stream=False)
        done = {output.request_id: output for _ in range(3) for output in engine.step()}
        for request_id, prompt in zip(others, prompts[1:], strict=True):
            engine.add_request(request_id, prompt, GREEDY, stream=False)
        while engine.has_unfinished_requests():
            done |= {output.request_id: output for output in engine.step()}
        outputs = [done[request_id] for request_id in (first, *others)]
        bench.check(prompts, outputs, "a prefix in use")
        assert outputs[1].metrics.num_cached_tokens > 0

    def test_greedy_samples_of_a_prompt_are_all_right(self, every_bench: Bench) -> None:
        """Samples part from one prompt, mid-block, and each goes on as if alone."""
        every_bench.require_sampling("n")
        prompts = every_bench.workload.prompts
        outputs = every_bench.run(prompts, replace(GREEDY, n=NUM_SAMPLES))
        for index in range(NUM_SAMPLES):
            parts = [
                replace(output, outputs=output.outputs[index : index + 1])
                for output in outputs
            ]
            every_bench.check(prompts, parts, f"sample {index} of {NUM_SAMPLES}")

    def test_samples_that_differ_do_not_mix(self, bench: Bench) -> None:
        """Copied blocks and recomputed ones give the same draws."""
        bench.require_sampling("n", "temperature", "seed")
        bench.require_exact()
        bench.require("block_copy")
        prompts = bench.workload.prompts
        params = [
            replace(WILD, n=NUM_SAMPLES, seed=seed) for seed in range(len(prompts))
        ]
        copied = bench.run(prompts, params)
        num_copies = sum(len(plan.block_copies) for plan in bench.recorder.plans)
        computed = bench.run(prompts, params, supports_block_copy=False)
        assert num_copies > 0, "no block was copied"
        for index, (one, other) in enumerate(zip(copied, computed, strict=True)):
            got = [sample.token_ids for sample in one.outputs]
            wanted = [sample.token_ids for sample in other.outputs]
            assert got == wanted, f"{bench.label}: prompt {index}: {got} != {wanted}"
        different = [len({sample.token_ids for sample in o.outputs}) for o in computed]
        assert max(different) > 1, "the samples do not differ"

    def test_block_copies_are_done_in_order(self, every_bench: Bench) -> None:
        """A block that is the target of one copy is the source of the next."""
        every_bench.require("block_copy")
        size = every_bench.loaded.block_size
        prompts = every_bench.workload.shared_prefix, every_bench.workload.growing[0]
        first, second = ((prompt * size)[:size] for prompt in prompts)
        _run_one(every_bench, first, (1,))
        _run_one(every_bench, second, (2,))
        wanted = _run_one(every_bench, (5,), (1, 4), num_computed_tokens=size)
        chain = BlockCopy(1, 2), BlockCopy(2, 3)
        got = _run_one(
            every_bench, (5,), (3, 4), num_computed_tokens=size, copies=chain
        )
        assert got == pytest.approx(wanted, rel=1e-4, abs=1e-3), (
            f"{every_bench.label}: copies 1 to 2, then 2 to 3, must leave in 3 what "
            "was in 1"
        )


def _run_one(
    bench: Bench,
    token_ids: TokenIds,
    block_ids: tuple[int, ...],
    *,
    num_computed_tokens: int = 0,
    copies: tuple[BlockCopy, ...] = (),
) -> list[float]:
    """Run one plan of one sequence: its logits ``[vocab]``, or the id it sampled."""
    request = GenerateRequest(fresh_ids(1)[0], token_ids, GREEDY)
    entry = ScheduledRequest(
        request, 0, token_ids, num_computed_tokens, block_ids, 1, 1
    )
    plan = StepPlan(0, (entry,), 1, copies, (), ())
    result = bench.loaded.executor.execute(plan)
    if result.sampled_token_ids is not None:
        return [float(token_id) for token_id in result.sampled_token_ids[0]]
    assert result.logits is not None
    logits: list[float] = np.from_dlpack(result.logits)[0].tolist()
    return logits
