"""The engine on a real model: transformers' tokens, right answers, no cross-talk."""

import numpy as np
import pytest

from hybrid import LLM, SamplingParams
from hybrid.backends.checkpoint.gguf_conversion import convert_gguf
from hybrid.models.cache import converted_dir
from hybrid.models.resolve import resolve_model
from tests.backends.engine_stand import check_whole, ids_of, reference

pytestmark = pytest.mark.model

MODEL = "smollm2-135m"
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
TEXTS = [
    "Hello, my name is",
    "The capital of France is",
    "Once upon a time there was a small",
    "def fibonacci(n):\n    ",
    "In 1969, the first humans landed on the",
]
MAX_LOGPROB_ERROR = 1e-3
"""Between a cold and a cached prompt, float32: sums are taken in another order."""


@pytest.fixture(scope="module")
def llm() -> LLM:
    """SmolLM2 in float32; the pool is small, the context its own."""
    return LLM(MODEL, dtype="float32", num_kv_blocks=400)


def test_greedy_tokens_are_those_of_transformers(llm: LLM) -> None:
    """Alone, together, in small chunks and in blocks of 32: all the same."""
    source = convert_gguf(
        resolve_model(MODEL), dtype="float32", cache_dir=converted_dir()
    )
    outputs = llm.generate(TEXTS, GREEDY)
    prompts = [output.prompt_token_ids for output in outputs]
    expected = reference(source.path, prompts, 24)
    assert ids_of(outputs) == expected
    assert [ids_of(llm.generate(text, GREEDY))[0] for text in TEXTS] == expected
    with LLM(
        MODEL,
        dtype="float32",
        block_size=32,
        num_kv_blocks=9,
        max_prefill_chunk_tokens=5,
    ) as tight:
        assert ids_of(tight.generate(TEXTS, GREEDY)) == expected
        check_whole(tight.llm_engine)


def test_it_knows_the_capital_of_france(llm: LLM) -> None:
    """The chat template, the end of the turn and the text come together."""
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    params = SamplingParams(temperature=0, max_tokens=64)
    sample = llm.chat(messages, params)[0].outputs[0]
    assert "Paris" in sample.text
    assert sample.finish_reason == "stop"
    assert "<|im_end|>" not in sample.text


def test_near_identical_prompts_do_not_talk_across(llm: LLM) -> None:
    """Each of eight answers repeats its own number, also from a cached prefix."""
    prompts = [
        f"The passphrase is cobalt fig {n}. Remember: cobalt fig {n}. "
        "Again, the passphrase is cobalt fig"
        for n in range(3, 11)
    ]
    params = SamplingParams(temperature=0, max_tokens=3)
    for _ in range(2):
        outputs = llm.generate(prompts, params)
        for number, output in zip(range(3, 11), outputs, strict=True):
            assert str(number) in output.outputs[0].text


def test_a_cached_prompt_gives_the_cold_answer(llm: LLM) -> None:
    """Same ids cold, warm and after other traffic; log-probabilities to a bound."""
    rng = np.random.default_rng(5)
    prompts = [rng.integers(100, 40000, n).tolist() for n in rng.integers(8, 60, 12)]
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0)
    assert llm.llm_engine.reset_prefix_cache()
    cold = llm.generate(prompts, params)
    warm = llm.generate(prompts, params)
    llm.generate(TEXTS, GREEDY)
    later = llm.generate(prompts, params)
    assert sum(output.metrics.num_cached_tokens for output in cold) == 0
    assert sum(output.metrics.num_cached_tokens for output in warm) > 0
    assert ids_of(cold) == ids_of(warm) == ids_of(later)
    for outputs in (warm, later):
        for first, again in zip(cold, outputs, strict=True):
            one, other = (o.outputs[0].cumulative_logprob for o in (first, again))
            assert one is not None
            assert other == pytest.approx(one, abs=MAX_LOGPROB_ERROR)
