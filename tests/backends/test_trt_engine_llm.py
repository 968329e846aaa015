"""A compiled engine's directory is a model like any other, from ``LLM`` on."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from hybrid import LLM, ConfigError, EngineConfig, SamplingParams, UnsupportedFeature
from hybrid.backends.checkpoint.gguf_conversion import convert_gguf
from hybrid.backends.trtllm.machine import Machine
from hybrid.engine_builder import build_engine
from hybrid.models.cache import converted_dir
from hybrid.models.resolve import resolve_model
from hybrid.testing.models import transformers_answers, write_tiny_model
from tests.backends.standin_engine import build_standin_engine
from tests.backends.standin_session import installed_runtime
from tests.backends.trt_engine_stand import HERE

PROMPTS = [list(range(5, 75)), [9, 8, 7], [300] * 33]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
TEXTS = ["The capital of France is", "Once upon a time", "def fibonacci(n):"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An engine for steps of 64 tokens, its weights beside it."""
    weights = write_tiny_model(tmp_path / "weights", "llama")
    out = tmp_path / "engine"
    return build_standin_engine(weights, out, max_num_tokens=64, max_batch_size=4)


def engine_options(directory: Path, **more: Any) -> dict[str, Any]:
    """What a user gives, without text."""
    return {
        "model": str(directory),
        "executor": "tensorrt_llm",
        "skip_tokenizer_init": True,
        "num_kv_blocks": 20,
        "max_num_seqs": 4,
        **more,
    }


def test_an_engine_answers_as_transformers_does(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its dtype and its limit of a step's tokens are taken from it, unasked."""
    monkeypatch.setattr(Machine, "detect", lambda: HERE)
    with installed_runtime() as seen, LLM(**engine_options(directory)) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        again = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    expected = transformers_answers(directory.parent / "weights", PROMPTS, 8)
    for found in (outputs, again):
        ids = [output.outputs[0].token_ids for output in found]
        assert ids == [answer.token_ids for answer in expected]
    sizes = [len(step["input_ids"]) for step in seen.sessions[0].steps]
    assert max(sizes) == 64
    assert again[0].metrics.num_cached_tokens == 64


def test_prompt_logprobs_of_an_engine_without_all_rows_are_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything runs; the engine was built without --gather_context_logits."""
    monkeypatch.setattr(Machine, "detect", lambda: HERE)
    params = SamplingParams(prompt_logprobs=1)
    with installed_runtime() as seen, LLM(**engine_options(directory)) as llm:
        with pytest.raises(UnsupportedFeature, match="does not take prompt_logprobs"):
            llm.generate(PROMPTS, params, use_tqdm=False)
        assert not seen.sessions[0].steps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 64}, "--tokens_per_block 64"),
        ({"dtype": "bfloat16"}, "it computes in float32"),
        ({"max_num_seqs": 256}, "--max_batch_size 256"),
        (
            {"max_num_batched_tokens": 65},
            "tokens is 65, LlamaForCausalLM was made for 64",
        ),
        ({"executor_options": {"attention": "torch"}}, "an engine keeps its own"),
    ],
)
def test_what_an_engine_was_not_built_for_is_refused_at_start(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    message: str,
) -> None:
    """Whether it is the directory's config.json or the scheduler that says so."""
    monkeypatch.setattr(Machine, "detect", lambda: HERE)
    with installed_runtime(), pytest.raises(ConfigError, match=message):
        build_engine(EngineConfig(**engine_options(directory, **options)))


def test_without_a_gpu_an_engine_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the device, not by what is not installed."""
    monkeypatch.setattr(Machine, "detect", lambda: Machine(("cpu",), None))
    with pytest.raises(ConfigError, match="an engine runs on cuda"):
        build_engine(EngineConfig(**engine_options(directory)))


@pytest.mark.model
def test_an_engine_of_smollm2_says_what_torch_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the tokenizer's files beside it, text in and text out."""
    options: dict[str, Any] = {
        "dtype": "float32",
        "num_kv_blocks": 60,
        "max_model_len": 256,
    }
    with LLM("smollm2-135m", executor="torch", **options) as llm:
        expected = llm.generate(TEXTS, GREEDY, use_tqdm=False)
    source = resolve_model("smollm2-135m")
    cache = converted_dir()
    weights = convert_gguf(source, dtype="float32", cache_dir=cache).path
    engine = build_standin_engine(weights, tmp_path / "engine")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(weights / name, engine)
    monkeypatch.setattr(Machine, "detect", lambda: HERE)
    options["executor"] = "tensorrt_llm"
    with installed_runtime(), LLM(str(engine), **options) as llm:
        found = llm.generate(TEXTS, GREEDY, use_tqdm=False)
    texts = [[one.outputs[0].text for one in outputs] for outputs in (found, expected)]
    assert texts[0] == texts[1]
