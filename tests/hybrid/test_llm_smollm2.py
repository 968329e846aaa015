"""The engine on a real model: transformers' tokens, right answers, no cross-talk."""

from pathlib import Path

import numpy as np
import pytest

from hybrid import LLM, SamplingParams
from hybrid.backends.checkpoint.gguf_conversion import convert_gguf
from hybrid.models.cache import converted_dir
from hybrid.models.resolve import resolve_model
from hybrid.testing import LoadedExecutor, ids_of, run
from tests.backends.engine_stand import load_torch, reference

pytestmark = pytest.mark.model

MODEL = "smollm2-135m"
BLOCK_SIZES = (16, 32, 64)
NUM_TOKENS = 16
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
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


@pytest.fixture(scope="module")
def prompts(llm: LLM) -> list[list[int]]:
    """The texts in token ids, and one longer than any block."""
    tokenizer = llm.llm_engine.tokenizer
    assert tokenizer is not None
    ids = [tokenizer.encode(text) for text in TEXTS]
    return [*ids, tokenizer.encode(" ".join(TEXTS * 2))]


@pytest.fixture(scope="module")
def folder() -> Path:
    """The model as transformers reads it."""
    source = convert_gguf(
        resolve_model(MODEL), dtype="float32", cache_dir=converted_dir()
    )
    return source.path


@pytest.fixture(scope="module")
def expected(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy answers by transformers' ``generate``, each prompt alone."""
    return reference(folder, prompts, NUM_TOKENS)


@pytest.fixture(scope="module", params=BLOCK_SIZES)
def loaded(request: pytest.FixtureRequest, folder: Path) -> LoadedExecutor:
    """The model in the torch executor, for every block size."""
    return load_torch(folder, request.param, num_threads=2)


@pytest.mark.parametrize("chunk", [1, 7, 16, 17, None])
def test_greedy_tokens_are_those_of_transformers(
    loaded: LoadedExecutor,
    prompts: list[list[int]],
    expected: list[list[int]],
    chunk: int | None,
) -> None:
    """A mixed batch in any chunks, with a cold prefix cache and a warm one."""
    engine = loaded.engine(max_prefill_chunk_tokens=chunk)
    assert ids_of(run(engine, prompts, GREEDY)) == expected
    assert ids_of(run(engine, prompts, GREEDY)) == expected


def test_each_prompt_alone_gives_the_same_tokens(
    loaded: LoadedExecutor, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """No answer depends on what shares the batch."""
    engine = loaded.engine(enable_prefix_caching=False)
    assert [ids_of(run(engine, [prompt], GREEDY))[0] for prompt in prompts] == expected


@pytest.fixture(scope="module")
def growing(
    folder: Path, prompts: list[list[int]]
) -> dict[int, tuple[list[list[int]], list[list[int]]]]:
    """By block size, prompts that soon outgrow their block, and their answers."""
    text = prompts[-1]
    by_size = {
        size: [text[at : at + size - 3] for at in range(3)] for size in BLOCK_SIZES
    }
    answers = reference(folder, [p for some in by_size.values() for p in some], 8)
    return {
        size: (by_size[size], answers[3 * index : 3 * index + 3])
        for index, size in enumerate(BLOCK_SIZES)
    }


@pytest.mark.parametrize("caching", [False, True])
def test_preempted_requests_give_the_same_tokens(
    loaded: LoadedExecutor,
    growing: dict[int, tuple[list[list[int]], list[list[int]]]],
    *,
    caching: bool,
) -> None:
    """A pool that cannot hold all at once only costs time."""
    prompts, expected = growing[loaded.block_size]
    engine = loaded.engine(num_blocks=3, enable_prefix_caching=caching)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    assert ids_of(run(engine, prompts, params)) == expected
    assert engine.stats().preemptions_total > 0


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
    prompts = [rng.integers(100, 40000, n).tolist() for n in rng.integers(8, 60, 40)]
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=0)
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
