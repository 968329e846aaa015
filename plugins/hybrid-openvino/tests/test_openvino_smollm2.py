"""SmolLM2 through the engine: OpenVINO and torch say the same, token by token."""

import pytest

from hybrid import LLM, SamplingParams

PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a little boat",
    "def fibonacci(n):",
    "Water boils at",
]


def _answers(executor: str) -> list[tuple[int, ...]]:
    params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    with LLM(
        "smollm2-135m", executor=executor, dtype="float32", num_kv_blocks=60
    ) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.model
def test_openvino_and_torch_agree_in_float32() -> None:
    """From the same GGUF file, in one batch, greedily."""
    assert _answers("openvino") == _answers("torch")
