"""Draws and log-probabilities depend on the request alone."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pytest

from hybrid.outputs import RequestOutput

from .bench import Bench
from .engine_run import ids_of, run
from .executor_case import ExecutorCase
from .workload import GREEDY, WILD

MAX_LOGPROB_ERROR: Final = 1e-3
"""Between two ways to compute a position in float32: sums in another order."""


class SamplingTests(ExecutorCase):
    """Who shares the batch, what was preempted and what was cut up does not show."""

    def test_seeded_draws_do_not_depend_on_neighbours(self, bench: Bench) -> None:
        """Alone, beside others, after a preemption: the same ids for the same seed."""
        bench.require_sampling("temperature", "seed")
        bench.require_exact()
        prompts = bench.workload.growing
        params = [replace(WILD, seed=seed) for seed in range(len(prompts))]
        alone = [
            ids_of(bench.run([prompt], [each]))[0]
            for prompt, each in zip(prompts, params, strict=True)
        ]
        together = ids_of(bench.run(prompts, params))
        tight = bench.engine(
            num_blocks=bench.workload.tight_num_blocks, enable_prefix_caching=False
        )
        preempted = ids_of(run(tight, prompts, params))
        assert tight.stats().preemptions_total > 0, "the pool was not small enough"
        assert together == alone, f"{bench.label}: neighbours change seeded draws"
        assert preempted == alone, f"{bench.label}: preemption changes seeded draws"

    def test_logprobs_are_those_of_a_distribution(self, bench: Bench) -> None:
        """Over the whole vocabulary they sum to one, and greedy takes the first."""
        bench.require_sampling("logprobs")
        vocab_size = bench.loaded.info.vocab_size
        params = replace(GREEDY, max_tokens=2, logprobs=vocab_size)
        for output in bench.run(bench.workload.prompts, params):
            (sample,) = output.outputs
            assert sample.logprobs is not None
            for token_id, entry in zip(sample.token_ids, sample.logprobs, strict=True):
                total = sum(math.exp(one.logprob) for one in entry.values())
                assert len(entry) == vocab_size
                assert total == pytest.approx(1.0, abs=1e-4), bench.label
                assert entry[token_id].rank == 1

    def test_prompt_logprobs_do_not_depend_on_chunks(
        self, bench: Bench, chunk: int | None
    ) -> None:
        """Each prompt position has its row, whatever the chunk that holds it."""
        bench.require("prompt_logprobs")
        prompts = bench.workload.prompts
        params = replace(GREEDY, max_tokens=1, prompt_logprobs=0)
        alone = [bench.run([prompt], params)[0] for prompt in prompts]
        cut = bench.run(prompts, params, max_prefill_chunk_tokens=chunk)
        for index, (one, other) in enumerate(zip(alone, cut, strict=True)):
            got, wanted = _prompt_logprobs(other), _prompt_logprobs(one)
            _check_equal(bench, got, wanted, f"prompt {index}, chunk {chunk}")

    def test_decoded_logprobs_are_those_of_a_prompt(self, bench: Bench) -> None:
        """An answer, given back as a prompt, is as likely as it was when drawn."""
        bench.require("prompt_logprobs")
        prompts = bench.workload.prompts
        answers = bench.run(prompts, replace(GREEDY, logprobs=0))
        longer = [
            (*prompt, *answer.outputs[0].token_ids)
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        scored = bench.run(longer, replace(GREEDY, max_tokens=1, prompt_logprobs=0))
        for index, (answer, score) in enumerate(zip(answers, scored, strict=True)):
            sample = answer.outputs[0]
            assert sample.logprobs is not None
            got = [
                position[token_id].logprob
                for position, token_id in zip(
                    sample.logprobs, sample.token_ids, strict=True
                )
            ]
            wanted = _prompt_logprobs(score)[-len(got) :]
            _check_equal(bench, got, wanted, f"answer {index}")


def _prompt_logprobs(output: RequestOutput) -> list[float]:
    """The log-probability of each prompt token but the first."""
    assert output.prompt_logprobs is not None
    entries = output.prompt_logprobs[1:]
    ids = output.prompt_token_ids[1:]
    return [
        entry[token_id].logprob
        for entry, token_id in zip(entries, ids, strict=True)
        if entry is not None
    ]


def _check_equal(
    bench: Bench, got: Sequence[float], wanted: Sequence[float], setting: str
) -> None:
    # Both runs may be off by half of the tolerance, in the row's logit and in its sum.
    bound = MAX_LOGPROB_ERROR + 2 * bench.tolerance
    assert len(got) == len(wanted), f"{bench.label}, {setting}: entries are missing"
    wrong = [
        f"position {position}: {one:.6f}, not {other:.6f}"
        for position, (one, other) in enumerate(zip(got, wanted, strict=True))
        if one != pytest.approx(other, abs=bound)
    ]
    assert not wrong, f"{bench.label}, {setting}: log-probabilities differ: {wrong[:5]}"
