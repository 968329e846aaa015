"""SmolLM2 through the engine: TensorRT-LLM's operator and torch say the same."""

from collections.abc import Mapping
from typing import Any

import pytest

from hybrid import LLM, SamplingParams
from hybrid.backends.trtllm.machine import Machine
from tests.backends.thop_stand import MACHINE
from tests.backends.trtllm_standin import installed

PROMPTS = [
    "The capital of France is",
    "Once upon a time a little boat left its harbour to see what lay beyond it. The",
    "def fibonacci(n):",
    "Water boils at",
]


def answers(executor: str, options: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Greedy answers to one batch, twice: the second time over cached prefixes."""
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    with LLM(
        "smollm2-135m",
        executor=executor,
        executor_options=options,
        dtype="float32",
        block_size=16,
        num_kv_blocks=60,
        max_model_len=256,
    ) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        outputs += llm.generate(PROMPTS, params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.model
def test_thop_and_torch_agree_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same weights, told by place and by name."""
    expected = answers("torch", {})
    monkeypatch.setattr(Machine, "detect", lambda: MACHINE)
    for version in ("1.2.1", "1.3.0rc10"):
        with installed(version) as package:
            assert answers("tensorrt_llm", {"attention": "thop"}) == expected
            assert package.bindings.internal.thop.attention.num_calls > 0
