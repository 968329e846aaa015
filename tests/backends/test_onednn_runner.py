"""The oneDNN fallback: what its options come to, near answers, refusals by name."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from hybrid.backends.checkpoint.gguf_conversion import convert_gguf
from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.cpu.onednn_formats import OneDNNFormats
from hybrid.backends.cpu.onednn_product import Int8Product
from hybrid.backends.cpu.onednn_runner import OneDNNRunner
from hybrid.backends.cpu.options import CpuOptions
from hybrid.backends.interface import ExecutorConfig
from hybrid.backends.pytorch.executor import TorchExecutor
from hybrid.models.cache import cache_dir
from hybrid.scheduler import ConfigError, UnsupportedFeature
from hybrid.testing import ARCHITECTURES, write_tiny_model
from hybrid.tokenizer.tokenizer import Tokenizer
from tests.backends.model_directory import change_weights
from tests.backends.onednn_stand import (
    OneDNNExecutor,
    load,
    needs_int8,
    prompt_logits,
)

IDS = tuple(range(5, 45))
ROOT = Path(__file__).parents[2]
TEXT = ROOT / "docs" / "architecture.md"


def transformers_logits(folder: Path) -> torch.Tensor:
    """Logits of ``IDS`` in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([IDS])).logits[0]
    return logits


def error(found: torch.Tensor, right: torch.Tensor) -> float:
    """Norm of the difference over the norm."""
    return float((found - right).norm() / right.norm())


@pytest.mark.parametrize(
    ("dtype", "asked", "formats"),
    [
        ("float32", {}, ("fp32", "float32", "float32")),
        ("bfloat16", {}, ("int8", "bfloat16", "bfloat16")),
        ("float32", {"quantization": "int8"}, ("int8", "float32", "bfloat16")),
        ("bfloat16", {"quantization": "fp32"}, ("fp32", "float32", "float32")),
        ("float32", {"quantization": "bf16"}, ("bf16", "bfloat16", "bfloat16")),
        (
            "bfloat16",
            {"kv_cache_dtype": "float32"},
            ("int8", "bfloat16", "float32"),
        ),
    ],
)
def test_options_come_to_formats(
    dtype: str, asked: dict[str, str], formats: tuple[str, str, str]
) -> None:
    """Of weights, of the file, of the cache."""
    assert OneDNNFormats.of(dtype, CpuOptions.parse(asked)) == OneDNNFormats(*formats)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"quantization": "int4"}, "quantization is int4, which needs the compiled"),
        (
            {"kv_cache_dtype": "int8"},
            "kv_cache_dtype is int8, which needs the compiled",
        ),
    ],
)
def test_what_needs_the_kernels_is_refused(
    tmp_path: Path, asked: dict[str, str], message: str
) -> None:
    """By the option: nothing else takes its place unasked."""
    with pytest.raises(ConfigError, match=message):
        load(OneDNNExecutor(), tmp_path, **asked)


def test_another_dtype_is_refused(tmp_path: Path) -> None:
    """The torch executor computes in it."""
    with pytest.raises(UnsupportedFeature, match="dtype is float16"):
        load(OneDNNExecutor(), tmp_path, dtype="float16")


def test_what_was_built_for_the_kernels_is_refused(tmp_path: Path) -> None:
    """Only they read it."""
    source = ModelSource("engine", tmp_path, CheckpointFormat.COMPILED)
    with pytest.raises(UnsupportedFeature, match="was built for the compiled kernels"):
        OneDNNRunner(source, ExecutorConfig(), CpuOptions())


def test_what_is_not_llama_shaped_is_refused(tmp_path: Path) -> None:
    """In the name of the executor that was asked."""
    folder = write_tiny_model(tmp_path, "gemma2")
    with pytest.raises(UnsupportedFeature, match="executor cpu cannot run this model"):
        load(OneDNNExecutor(), folder)


@needs_int8
def test_a_cpu_without_exact_sums_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a model is loaded; float32 needs none and is."""
    monkeypatch.setattr(Int8Product, "__call__", lambda _, rows: rows[:, :1])
    folder = write_tiny_model(tmp_path, "llama")
    with pytest.raises(UnsupportedFeature, match="no 8-bit dot product"):
        load(OneDNNExecutor(), folder, quantization="int8")
    load(OneDNNExecutor(), folder, quantization="fp32")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("asked", "limit"),
    [
        ({"quantization": "fp32", "kv_cache_dtype": "bfloat16"}, 0.02),
        ({"quantization": "bf16", "kv_cache_dtype": "float32"}, 0.05),
        pytest.param({"quantization": "int8"}, 0.15, marks=needs_int8),
    ],
)
def test_logits_are_near_those_of_transformers(
    tmp_path: Path, architecture: str, asked: dict[str, str], limit: float
) -> None:
    """In every mix of weights and cache, of models with large weights."""
    folder = write_tiny_model(tmp_path, architecture)
    found = prompt_logits(load(OneDNNExecutor(), folder, **asked), IDS)
    assert 0 < error(found, transformers_logits(folder)) < limit


@needs_int8
def test_an_embedding_of_zeros_gives_numbers(tmp_path: Path) -> None:
    """A row whose largest number is 0 has no step of 8 bits."""
    folder = write_tiny_model(tmp_path, "llama")
    name = "model.embed_tokens.weight"
    embeddings = load_file(folder / "model.safetensors")[name]
    embeddings[list(IDS[::3])] = 0
    change_weights(folder, **{name.replace(".", "__"): embeddings})
    loaded = load(OneDNNExecutor(), folder, quantization="int8")
    assert prompt_logits(loaded, IDS).isfinite().all()


@needs_int8
@pytest.mark.model
def test_smollm2_agrees_with_the_torch_executor() -> None:
    """On prose: mostly the same most probable token, and nearly the same loss.

    One scale for all activations of a row is what oneDNN takes, and what it costs.
    """
    path = cache_dir() / "models" / "smollm2-135m" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.is_file():
        pytest.skip(f"{path} is not there; `hybrid pull smollm2-135m` fetches it")
    source = ModelSource("smollm2-135m", path, CheckpointFormat.GGUF)
    folder = convert_gguf(
        source, dtype="float32", cache_dir=cache_dir() / "converted"
    ).path
    ids = tuple(Tokenizer.from_directory(folder).encode(TEXT.read_text())[:512])
    right, found = (
        prompt_logits(load(executor, folder, **asked), ids)
        for executor, asked in (
            (TorchExecutor(), {}),
            (OneDNNExecutor(), {"quantization": "int8"}),
        )
    )
    agreement = (right.argmax(1) == found.argmax(1)).float().mean()
    assert agreement > 0.8
    losses = [
        float(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])))
        for logits in (right, found)
    ]
    assert abs(losses[1] - losses[0]) < 0.1
