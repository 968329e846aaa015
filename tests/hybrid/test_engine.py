"""The engine over the null executor, whose answers are right only if paging is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid import (
    FinishReason,
    SamplingParams,
)
from hybrid.testing import check_whole, ids_of, run
from tests.hybrid.null_stand import VOCAB_SIZE, make_engine

GREEDY = SamplingParams(temperature=0, max_tokens=12)
PROMPTS = [[1, 2, 3], list(range(4, 13)), [5] * 8, [9, 8, 7, 6, 5], list(range(20, 40))]
HOSTILE = SamplingParams(
    max_tokens=9,
    presence_penalty=2.0,
    repetition_penalty=3.0,
    allowed_token_ids=(3, 5, 8),
    top_p=0.5,
)


def alone(prompt: list[int], params: SamplingParams) -> list[int]:
    """The answer of a fresh, roomy engine to one prompt."""
    return ids_of(run(make_engine(), [prompt], params))[0]


@settings(max_examples=40, deadline=None)
@given(
    prompts=st.lists(
        st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=20),
        min_size=1,
        max_size=5,
    ),
    num_blocks=st.integers(9, 40),
    chunk=st.sampled_from([1, 3, 4, 7, None]),
    budget=st.integers(1, 40),
    caching=st.booleans(),
)
def test_no_answer_depends_on_pool_chunks_budget_cache_or_neighbours(
    prompts: list[list[int]],
    num_blocks: int,
    chunk: int | None,
    budget: int,
    *,
    caching: bool,
) -> None:
    """Whatever the limits, each answer is that of the prompt alone."""
    engine = make_engine(
        num_blocks=num_blocks,
        max_prefill_chunk_tokens=chunk,
        max_num_batched_tokens=budget,
        enable_prefix_caching=caching,
    )
    answers = ids_of(run(engine, prompts, GREEDY))
    assert answers == [alone(prompt, GREEDY) for prompt in prompts]


@pytest.mark.parametrize("num_blocks", [9, 32])
def test_a_seeded_request_repeats_beside_any_neighbour_and_after_preemption(
    num_blocks: int,
) -> None:
    """Its draws depend on seed and position alone."""
    seeded = SamplingParams(temperature=1.0, seed=42, max_tokens=12)
    expected = alone(PROMPTS[1], seeded)
    assert alone(PROMPTS[1], seeded) == expected
    neighbours = [
        [seeded, seeded],
        [seeded, SamplingParams(temperature=1.0, max_tokens=12)],
        [seeded, HOSTILE, GREEDY],
    ]
    for params in neighbours:
        engine = make_engine(num_blocks=num_blocks)
        prompts = [PROMPTS[1], *PROMPTS[2 : len(params) + 1]]
        assert ids_of(run(engine, prompts, params))[0] == expected
    engine = make_engine(num_blocks=num_blocks)
    engine.add_request("cancelled", PROMPTS[4], HOSTILE)
    engine.add_request("seeded", PROMPTS[1], seeded, stream=False)
    engine.step()
    engine.abort("cancelled")
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert ids_of(outputs) == [expected]


def test_a_seeded_request_survives_a_real_preemption() -> None:
    """The random state moves once per emitted token, not per computed one."""
    seeded = SamplingParams(temperature=1.0, seed=7, max_tokens=20, ignore_eos=True)
    engine = make_engine(num_blocks=9)
    answers = ids_of(run(engine, PROMPTS[:3], seeded))
    assert engine.stats().preemptions_total > 0
    assert answers == [alone(prompt, seeded) for prompt in PROMPTS[:3]]


def test_samples_differ_and_repeat() -> None:
    """Four seeded samples of one prompt are four answers, the same ones again."""
    params = SamplingParams(temperature=1.0, seed=3, n=4, max_tokens=8)
    first, second = (run(make_engine(), [PROMPTS[1]], params)[0] for _ in range(2))
    texts = [sample.token_ids for sample in first.outputs]
    assert texts == [sample.token_ids for sample in second.outputs]
    assert len(set(texts)) == 4
    assert [sample.index for sample in first.outputs] == [0, 1, 2, 3]
    assert first.metrics.num_output_tokens == 32


def test_a_streaming_request_grows_and_ends_once() -> None:
    """Each output repeats the one before and adds; only the last is finished."""
    engine = make_engine()
    engine.add_request("a", [1, 2, 3], GREEDY)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    assert lengths == list(range(1, 13))
    assert [output.finished for output in outputs] == [False] * 11 + [True]
    reasons = [output.outputs[0].finish_reason for output in outputs]
    assert reasons == [None] * 11 + [FinishReason.LENGTH]


@pytest.mark.parametrize("num_steps", range(8))
@pytest.mark.parametrize("n", [1, 3])
def test_an_abort_in_any_state_leaves_the_pool_whole(num_steps: int, n: int) -> None:
    """Queued, in mid-prompt, decoding, preempted or finished: twice is no error."""
    engine = make_engine(
        num_blocks=12, max_prefill_chunk_tokens=3, max_num_batched_tokens=8
    )
    params = SamplingParams(max_tokens=10, n=n, logprobs=2)
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), prompt, params)
    ended = set()
    for _ in range(num_steps):
        ended |= {o.request_id for o in engine.step() if o.finished}
    for index in range(len(PROMPTS)):
        output = engine.abort(str(index))
        assert (output is None) == (str(index) in ended)
        if output is not None:
            assert output.finished
            assert output.outputs[0].finish_reason is FinishReason.ABORT
        assert engine.abort(str(index)) is None
    assert engine.abort("never seen") is None
    check_whole(engine)


def test_an_aborted_prompt_publishes_no_half_written_block() -> None:
    """What a cancelled prompt did not compute is not found by the next one."""
    engine = make_engine(max_prefill_chunk_tokens=6)
    engine.add_request("a", PROMPTS[4], GREEDY)
    engine.step()
    engine.abort("a")
    answer = run(engine, [PROMPTS[4]], GREEDY)[0]
    assert ids_of([answer]) == [alone(PROMPTS[4], GREEDY)]
    assert answer.metrics.num_cached_tokens <= 6


def test_requests_without_max_tokens_overlap() -> None:
    """No room is reserved for the longest answer there could be."""
    engine = make_engine(num_blocks=32)
    for index in range(4):
        engine.add_request(str(index), [index + 1] * 4, SamplingParams(temperature=0))
    engine.step()
    engine.step()
    assert engine.stats().num_requests_running == 4


@pytest.mark.parametrize("num_blocks", [1, 2])
@pytest.mark.parametrize("length", [4, 8])
def test_a_prompt_of_whole_blocks_is_answered_alike_thrice(
    num_blocks: int, length: int
) -> None:
    """A fully cached prompt still computes its last token; the chain stays whole."""
    prompt = list(range(10, 10 + length * num_blocks))
    engine = make_engine()
    for max_tokens in (1, 20, 20):
        params = SamplingParams(temperature=0, max_tokens=max_tokens)
        output = run(engine, [prompt], params)[0]
        assert ids_of([output])[0] == alone(prompt, params)
        assert output.metrics.num_cached_tokens <= len(prompt) - 1


def test_recomputation_is_no_prefix_hit() -> None:
    """Prompts that share nothing have no hits, however often they are preempted."""
    engine = make_engine(num_blocks=9)
    prompts = [[10 * i + j for j in range(6)] for i in range(4)]
    outputs = run(engine, prompts, SamplingParams(temperature=0, max_tokens=20))
    stats = engine.stats()
    assert stats.preemptions_total > 0
    assert stats.prefix_cache_hits_total == 0
    assert [output.metrics.num_cached_tokens for output in outputs] == [0] * 4


def test_logprobs_come_one_per_token_and_prompt_logprobs_one_per_prompt_token() -> None:
    """Counts agree under chunks and preemption; the first prompt entry is ``None``."""
    params = SamplingParams(
        temperature=1.0, seed=1, max_tokens=16, logprobs=2, prompt_logprobs=1
    )
    engine = make_engine(num_blocks=9, max_prefill_chunk_tokens=3)
    for output, prompt in zip(
        run(engine, PROMPTS[:4], params), PROMPTS[:4], strict=True
    ):
        sample = output.outputs[0]
        assert sample.logprobs is not None
        assert len(sample.logprobs) == len(sample.token_ids) == 16
        for token_id, position in zip(sample.token_ids, sample.logprobs, strict=True):
            assert token_id in position
            assert 2 <= len(position) <= 3
        total = sum(
            position[token_id].logprob
            for token_id, position in zip(
                sample.token_ids, sample.logprobs, strict=True
            )
        )
        assert sample.cumulative_logprob == pytest.approx(total)
        assert output.prompt_logprobs is not None
        assert len(output.prompt_logprobs) == len(prompt)
        assert output.prompt_logprobs[0] is None
        for token_id, position in zip(
            prompt[1:], output.prompt_logprobs[1:], strict=True
        ):
            assert position is not None
            assert token_id in position
    assert engine.stats().preemptions_total > 0


def test_metrics_add_up() -> None:
    """Tokens, requests and times of the snapshot are those of the outputs."""
    engine = make_engine()
    outputs = run(engine, PROMPTS, GREEDY)
    stats = engine.stats()
    assert stats.requests_total == len(PROMPTS)
    assert stats.requests_finished_total == {"length": len(PROMPTS)}
    assert stats.generation_tokens_total == 12 * len(PROMPTS)
    assert stats.prompt_tokens_total == sum(map(len, PROMPTS))
    for output in outputs:
        metrics = output.metrics
        assert metrics.queue_s is not None
        assert metrics.ttft_s is not None
        assert 0 <= metrics.queue_s <= metrics.ttft_s <= metrics.total_s
    assert 0 < stats.kv_peak_used_slots <= stats.kv_peak_allocated_slots


def test_mixed_lengths_waste_little_of_the_pool() -> None:
    """At batch 32 under 4 % of the slots allocated at the fullest stand empty."""
    engine = make_engine(block_size=16, num_blocks=2000, max_model_len=128 * 8)
    prompts = [[index + 1] * (64 + 29 * index % 500) for index in range(32)]
    run(engine, prompts, SamplingParams(temperature=0, max_tokens=128))
    assert engine.stats().kv_peak_allocated_slots > 8000
    assert engine.stats().kv_peak_waste < 0.04
