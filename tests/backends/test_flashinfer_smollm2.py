"""SmolLM2 through the engine: FlashInfer's kernels and torch say the same."""

import pytest

from hybrid import LLM, SamplingParams
from hybrid.backends.trtllm import flashinfer_refusal
from hybrid.backends.trtllm.machine import Machine
from tests.backends.standin_flashinfer import installed

PROMPTS = [
    "The capital of France is",
    "Once upon a time a little boat left its harbour to see what lay beyond it. The",
    "Water boils at",
]


def answers(attention: str) -> list[tuple[int, ...]]:
    """Greedy answers to one batch, twice: the second time over cached prefixes."""
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(
        "smollm2-135m",
        executor="tensorrt_llm",
        executor_options={"attention": attention},
        dtype="float32",
        block_size=16,
        num_kv_blocks=60,
        max_model_len=256,
    ) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        outputs += llm.generate(PROMPTS, params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.model
@pytest.mark.parametrize("capability", [(9, 0), (10, 0)], ids=["Hopper", "Blackwell"])
def test_flashinfer_and_torch_agree_in_float32(
    capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the same weights; both kinds of kernels were called."""
    expected = answers("torch")
    machine = Machine(("cpu",), capability, kernel_device="cpu")
    monkeypatch.setattr(Machine, "detect", lambda: machine)
    floats = (*flashinfer_refusal.DTYPES, "float32")
    monkeypatch.setattr(flashinfer_refusal, "DTYPES", floats)
    with installed(capability, allows_float32=True) as stand_in:
        assert answers("flashinfer") == expected
    assert len({name for name, _ in stand_in.calls}) == 2
