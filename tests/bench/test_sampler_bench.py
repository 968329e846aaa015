"""What a step costs: 32 rows of a 49152-word vocabulary, and text per token."""

from collections.abc import Callable

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hybrid.backends.interface import ForwardResult
from hybrid.sampler.sampler import Sampler
from hybrid.scheduler.plan import StepPlan
from hybrid.tokenizer.detokenizer import IncrementalDetokenizer
from hybrid.tokenizer.output_text import OutputText
from tests.hybrid.sampler_stand import make_entry, make_plan, make_request
from tests.hybrid.text_decoders import CountingDecoder, byte_level

NUM_ROWS = 32
VOCAB = 49152
Step = tuple[Sampler, StepPlan, ForwardResult]


def peaked_logits() -> np.ndarray:
    """Rows as a trained model's: a few hundred likely ids above a wide floor."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((NUM_ROWS, VOCAB)).astype(np.float32) * 2
    rows[:, rng.permutation(VOCAB)[:300]] += 12
    return rows


def flat_logits() -> np.ndarray:
    """Rows as a random model's: half of the vocabulary is the likeliest 0.9."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((NUM_ROWS, VOCAB)).astype(np.float32)


def make_step(logits: np.ndarray, **params: object) -> Step:
    """A sampler in mid-answer and a step of 32 sequences."""
    sampler = Sampler(VOCAB)
    prompt = range(0, VOCAB, 200)
    requests = [make_request(str(i), prompt, seed=i, **params) for i in range(NUM_ROWS)]
    for request in requests:
        sampler.add_request(request)
    plan = make_plan(*(make_entry(request) for request in requests))
    return sampler, plan, ForwardResult(logits=logits)


@pytest.mark.parametrize(
    ("logits", "params"),
    [
        pytest.param(peaked_logits, {"temperature": 0.0}, id="greedy"),
        pytest.param(peaked_logits, {}, id="plain_draw"),
        pytest.param(peaked_logits, {"top_p": 0.9}, id="top_p"),
        pytest.param(flat_logits, {"top_p": 0.9}, id="top_p_flat"),
        pytest.param(peaked_logits, {"top_k": 50, "top_p": 0.9}, id="top_k_top_p"),
        pytest.param(
            peaked_logits,
            {
                "temperature": 0.0,
                "repetition_penalty": 1.1,
                "frequency_penalty": 0.5,
                "presence_penalty": 0.5,
            },
            id="penalties",
        ),
        pytest.param(peaked_logits, {"temperature": 0.0, "logprobs": 5}, id="logprobs"),
    ],
)
def test_sample_32_rows(
    benchmark: BenchmarkFixture,
    logits: Callable[[], np.ndarray],
    params: dict[str, float],
) -> None:
    """One step of 32 sequences draws 32 tokens."""
    sampler, plan, result = make_step(logits(), **params)
    sampled = benchmark(sampler.sample, plan, result)
    assert len(sampled.token_ids) == NUM_ROWS


def test_text_of_256_tokens(benchmark: BenchmarkFixture) -> None:
    """An answer's tokens become text one by one, with two stop strings watched."""
    tokenizer = byte_level()
    words = "The quick brown fox jumps over the lazy dog. Ça va, 漢字? "
    ids = (tokenizer.encode(words).ids * 20)[:256]
    params = make_request(stop=["\n\n", "The end"]).sampling_params

    def answer() -> str:
        decoder = CountingDecoder(tokenizer)
        text = OutputText(
            params, IncrementalDetokenizer(decoder, prompt_token_ids=ids[:8])
        )
        for token_id in ids:
            text.append((token_id,), is_last=False)
        text.append((), is_last=True)
        return text.text

    assert benchmark(answer) == tokenizer.decode(ids)
