"""SmolLM2 in the CPU kernels: exact answers are torch's, all of them any batch's."""

from collections.abc import Iterator, Sequence

import pytest

from hybrid import LLM, RequestOutput, SamplingParams

PROMPTS = [
    "The capital of France is",
    "Once upon a time a little boat left its harbour to see what lay beyond it. The",
    "def fibonacci(n):",
    "Water boils at",
    *(
        f"The passphrase is cobalt fig {number}. Again: the passphrase is"
        for number in range(4)
    ),
]
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=3)
pytestmark = pytest.mark.model

Answer = tuple[tuple[int, ...], object]


def _load(executor: str, dtype: str, **options: str) -> LLM:
    return LLM(
        "smollm2-135m",
        executor=executor,
        executor_options=options,
        dtype=dtype,
        block_size=16,
        num_kv_blocks=120,
        max_model_len=256,
    )


def _answers(outputs: Sequence[RequestOutput]) -> list[Answer]:
    """Tokens, and their log-probabilities to the last bit."""
    samples = [output.outputs[0] for output in outputs]
    return [(sample.token_ids, sample.logprobs) for sample in samples]


def test_exact_weights_give_the_tokens_of_the_torch_executor() -> None:
    """In float32 the weights are the checkpoint's own."""
    found = []
    for executor in ("torch", "cpu"):
        with _load(executor, "float32") as llm:
            outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
            found.append([ids for ids, _ in _answers(outputs)])
    assert found[0] == found[1]


@pytest.fixture(scope="module", params=["int4", "int8"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    """Quantised; the first as the model's file is."""
    options = {
        "implementation": "native",
        "quantization": request.param,
        "batch_invariant": "yes",
    }
    with _load("cpu", "auto", **options) as llm:
        yield llm


def test_an_answer_alone_is_the_answer_in_any_batch(llm: LLM) -> None:
    """Tokens and log-probabilities; cold, over cached prefixes, beside near-twins."""
    together = _answers(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
    again = _answers(llm.generate(PROMPTS[::-1], GREEDY, use_tqdm=False))[::-1]
    alone = [
        _answers(llm.generate(prompt, GREEDY, use_tqdm=False))[0] for prompt in PROMPTS
    ]
    assert together == alone
    assert again == alone


def test_a_quantised_model_knows_what_it_knew(llm: LLM) -> None:
    """The most certain of facts survives the rounding."""
    (output,) = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)
    assert output.outputs[0].text.startswith(" Paris")
