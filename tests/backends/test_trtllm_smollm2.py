"""SmolLM2 through the engine: whoever attends, the answers are the torch executor's."""

from collections.abc import Mapping
from typing import Any

import pytest

from hybrid import LLM, SamplingParams
from hybrid.backends.trtllm import flashinfer_refusal
from hybrid.backends.trtllm.machine import Machine
from tests.backends import standin_flashinfer, trtllm_standin
from tests.backends.thop_stand import MACHINE

PROMPTS = [
    "The capital of France is",
    "Once upon a time a little boat left its harbour to see what lay beyond it. The",
    "def fibonacci(n):",
    "Water boils at",
]
Answers = list[tuple[int, ...]]
pytestmark = pytest.mark.model


def answers(executor: str, options: Mapping[str, Any]) -> Answers:
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


@pytest.fixture(scope="module")
def expected() -> Answers:
    """The torch executor's."""
    return answers("torch", {})


def test_plain_torch_over_the_paged_layout(expected: Answers) -> None:
    """Our model, with attention that needs no library."""
    assert answers("tensorrt_llm", {"attention": "torch"}) == expected


@pytest.mark.parametrize("version", ["1.2.1", "1.3.0rc10"])
def test_the_operator(
    expected: Answers, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told by place and by name."""
    monkeypatch.setattr(Machine, "detect", lambda: MACHINE)
    with trtllm_standin.installed(version) as package:
        assert answers("tensorrt_llm", {"attention": "thop"}) == expected
        assert package.bindings.internal.thop.attention.num_calls > 0


@pytest.mark.parametrize("capability", [(9, 0), (10, 0)], ids=["Hopper", "Blackwell"])
def test_flashinfer(
    expected: Answers, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, which the stand-in takes; both kinds of kernels were called."""
    machine = Machine(("cpu",), capability, kernel_device="cpu")
    monkeypatch.setattr(Machine, "detect", lambda: machine)
    floats = (*flashinfer_refusal.DTYPES, "float32")
    monkeypatch.setattr(flashinfer_refusal, "DTYPES", floats)
    with standin_flashinfer.installed(capability, allows_float32=True) as stand_in:
        assert answers("tensorrt_llm", {"attention": "flashinfer"}) == expected
    assert len({name for name, _ in stand_in.calls}) == 2
