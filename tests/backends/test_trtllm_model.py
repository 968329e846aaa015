"""Our Llama-shaped model: transformers' logits, or a refusal that says why."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from hybrid import LLM, SamplingParams
from hybrid.backends.pytorch.llama import Llama
from hybrid.backends.trtllm.executor import TrtllmExecutor
from hybrid.scheduler import CheckpointError, ConfigError, UnsupportedFeature
from hybrid.testing import ids_of, run, transformers_answers, write_tiny_model
from tests.backends.model_directory import change_weights
from tests.backends.trtllm_stand import load_trtllm

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
DYNAMIC_ROPE = {
    "rope_type": "dynamic",
    "rope_theta": 1e4,
    "factor": 2.0,
    "original_max_position_embeddings": 64,
}
PROMPTS = [list(range(5, 45)), [9, 8, 7]]


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"head_dim": 32},
        {"num_key_value_heads": 4},
    ],
    ids=lambda changes: "-".join(map(str, changes)),
)
def test_what_a_configuration_may_say_is_followed(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Rotary scaling, tied embeddings, biases, head sizes: transformers' tokens."""
    folder = write_tiny_model(tmp_path, "llama", **changes)
    outputs = run(load_trtllm(folder).engine(), PROMPTS, GREEDY)
    expected = transformers_answers(folder, PROMPTS, GREEDY.max_tokens or 0)
    assert ids_of(outputs) == [list(answer.token_ids) for answer in expected]


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("gemma2", {}, "model_type is 'gemma2', must be one of llama, mistral"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu', must be one of silu"),
        (
            "llama",
            {"rope_parameters": DYNAMIC_ROPE},
            "dynamic rotary embeddings",
        ),
    ],
)
def test_what_is_not_llama_shaped_is_refused(
    tmp_path: Path, architecture: str, changes: dict[str, Any], message: str
) -> None:
    """By what is not, before anything runs."""
    folder = write_tiny_model(tmp_path, architecture, **changes)
    with pytest.raises(UnsupportedFeature, match=message):
        load_trtllm(folder)


def test_a_model_that_answers_otherwise_than_transformers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A switch of the configuration that ours does not know shows in the logits."""
    monkeypatch.setattr(Llama, "_rotate", lambda *_: None)
    with pytest.raises(UnsupportedFeature, match="by more than rounding"):
        load_trtllm(write_tiny_model(tmp_path, "llama"))


def test_a_weight_that_is_no_number_is_named(tmp_path: Path) -> None:
    """Instead of answers that are none."""
    name = "model.layers.1.mlp.down_proj.weight"
    write_tiny_model(tmp_path, "llama")
    weight = load_file(tmp_path / "model.safetensors")[name]
    weight[0, 0] = float("nan")
    change_weights(tmp_path, **{name.replace(".", "__"): weight})
    with pytest.raises(CheckpointError, match=f"{name} holds what is no finite number"):
        load_trtllm(tmp_path)


def test_an_attention_that_cannot_serve_is_an_error(tmp_path: Path) -> None:
    """It was asked for by name: no other takes its place."""
    with pytest.raises(
        ConfigError,
        match="'thop' cannot serve: its kernels need",
    ):
        load_trtllm(write_tiny_model(tmp_path, "llama"), attention="thop")


def test_what_a_broken_request_left_in_the_pool_does_not_reach_the_next(
    tmp_path: Path,
) -> None:
    """Blocks are cleared when they get their first token: 0 * NaN would be NaN."""
    folder = write_tiny_model(tmp_path, "llama")
    loaded = load_trtllm(folder)
    assert isinstance(loaded.executor, TrtllmExecutor)
    pool = loaded.executor._pool
    assert pool is not None
    pool.memory[1:] = float("nan")
    outputs = run(loaded.engine(), PROMPTS, GREEDY)
    expected = transformers_answers(folder, PROMPTS, GREEDY.max_tokens or 0)
    assert ids_of(outputs) == [list(answer.token_ids) for answer in expected]


def test_transformers_weights_are_not_kept_beside_ours(tmp_path: Path) -> None:
    """Joined products are copies: the parts are let go of, layer by layer."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - only here

    folder = write_tiny_model(tmp_path, "llama")
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    model = Llama(loaded, num_heads=4)
    left = sum(weight.numel() for weight in loaded.model.layers.parameters())
    assert left == 0
    assert len(model._layers) == 3


@pytest.mark.model
def test_smollm2_answers_as_under_the_torch_executor() -> None:
    """From the same GGUF file, in one batch, greedily, in float32."""
    prompts = [
        "The capital of France is",
        "Once upon a time there was a little boat",
        "def fibonacci(n):",
        "Water boils at",
    ]
    params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    answers = []
    for executor in ("tensorrt_llm", "torch"):
        with LLM(
            "smollm2-135m", executor=executor, dtype="float32", num_kv_blocks=60
        ) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
        answers.append([output.outputs[0].token_ids for output in outputs])
    assert answers[0] == answers[1]
