"""Built engines compute what transformers computes, each op where the plan puts it."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from hybrid.backends.cpu.build_options import BuildOptions
from hybrid.backends.cpu.engine_build import build_engine_directory
from hybrid.backends.cpu.engine_directory import WEIGHTS_NAME, read_engine
from hybrid.testing.models import ARCHITECTURES, write_tiny_model
from tests.backends.built_cpu_engine import build, hf_source
from tests.backends.model_directory import change_weights
from tests.backends.plan_interpreter import run_plan, unpacked
from tests.backends.tiny_checkpoints import make_model

PROMPT = [3, 7, 11, 2, 9, 14, 5, 8, 1, 30, 22, 4, 6, 19, 40]
"""Longer than the window of the tiny Mistral."""


def _reference(folder: Path) -> NDArray[np.float32]:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        logits: NDArray[np.float32] = model(torch.tensor([PROMPT])).logits[0].numpy()
    return logits


def _distance(found: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(found - reference) / np.linalg.norm(reference))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("quantization", "limit"),
    [("fp32", 1e-5), ("bf16", 0.04), ("int8", 0.12), ("int4", 0.6)],
)
def test_an_engine_computes_its_model(
    architecture: str, quantization: str, limit: float, tmp_path: Path
) -> None:
    """Exactly in fp32, else to the rounding of its weights and activations."""
    folder = write_tiny_model(tmp_path / "model", architecture)
    engine = build(hf_source(folder), tmp_path / "engine", quantization=quantization)
    assert _distance(run_plan(engine, PROMPT), _reference(folder)) < limit


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"hidden_size": 72, "intermediate_size": 100, "vocab_size": 333}),
        ("llama", {"head_dim": 20, "num_key_value_heads": 4}),
        ("qwen2", {"head_dim": 10, "num_key_value_heads": 1}),
        ("qwen3", {"attention_bias": True}),
        ("mistral", {"sliding_window": None}),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
        ),
        (
            "llama",
            {
                "rope_parameters": {
                    "rope_type": "linear",
                    "rope_theta": 1e4,
                    "factor": 4,
                }
            },
        ),
        (
            "llama",
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
        ),
        (
            "qwen3",
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 1e4,
                    "factor": 4.0,
                    "original_max_position_embeddings": 128,
                }
            },
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_every_switch_that_is_taken_is_honoured(
    architecture: str, overrides: dict[str, object], tmp_path: Path
) -> None:
    """Biases, tied heads, odd sizes, windows of some layers, scaled positions."""
    folder = write_tiny_model(tmp_path / "model", architecture, **overrides)
    engine = build(hf_source(folder), tmp_path / "engine", quantization="fp32")
    assert _distance(run_plan(engine, PROMPT), _reference(folder)) < 1e-5


def test_a_tied_head_is_stored_once(tmp_path: Path) -> None:
    """The table that embeds is the matrix that gives logits, also when packed."""
    folder = write_tiny_model(tmp_path / "m", "llama", tie_word_embeddings=True)
    tied = build(hf_source(folder), tmp_path / "tied", quantization="int8")
    assert tied.shape.ties_embeddings
    assert [weight.name for weight in tied.weights].count("head") == 0
    assert tied.ops[0].weight == tied.ops[-1].weight


@pytest.mark.parametrize("is_equal", [True, False])
def test_a_head_in_the_files_wins_over_a_tied_configuration(
    is_equal: bool, tmp_path: Path
) -> None:
    """As transformers' loader has it here; an equal one is stored once all the same."""
    folder = write_tiny_model(tmp_path / "m", "llama", tie_word_embeddings=True)
    weights = change_weights(folder)
    table = weights["model.embed_tokens.weight"]
    head = table.clone() if is_equal else table.flip(0).contiguous()
    change_weights(folder, lm_head__weight=head)
    engine = build(hf_source(folder), tmp_path / "engine", quantization="fp32")
    assert engine.shape.ties_embeddings is is_equal
    np.testing.assert_array_equal(
        unpacked(engine.weights[engine.ops[-1].weight]), head.numpy()
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_of_any_float_are_read_exactly(dtype: str, tmp_path: Path) -> None:
    """Half precision widens without loss; several files are one model."""
    model = make_model("llama").to(getattr(torch, dtype))
    model.save_pretrained(tmp_path / "m", max_shard_size="50KB")
    assert (tmp_path / "m" / "model.safetensors.index.json").is_file()
    engine = build(hf_source(tmp_path / "m"), tmp_path / "e", quantization="fp32")
    expected = model.state_dict()["model.layers.1.mlp.down_proj.weight"].float()
    down = next(w for w in engine.weights if w.name == "layers.1.down")
    np.testing.assert_array_equal(unpacked(down), expected.numpy())


def test_joined_matrices_stand_row_under_row(tmp_path: Path) -> None:
    """Queries, keys, values; gate, up; and their biases."""
    folder = write_tiny_model(tmp_path / "m", "qwen2")
    weights = change_weights(folder)
    engine = build(hf_source(folder), tmp_path / "e", quantization="fp32")
    qkv = next(w for w in engine.weights if w.name == "layers.2.qkv")
    names = [f"model.layers.2.self_attn.{part}_proj" for part in "qkv"]
    np.testing.assert_array_equal(
        unpacked(qkv), torch.cat([weights[f"{name}.weight"] for name in names])
    )
    assert qkv.bias is not None
    np.testing.assert_array_equal(
        qkv.bias, torch.cat([weights[f"{name}.bias"] for name in names])
    )


@pytest.mark.parametrize(
    ("quantization", "limit"), [("bf16", 2**-8), ("int8", 1 / 250), ("int4", 0.2)]
)
def test_a_matrix_of_many_parts_is_whole(
    quantization: str, limit: float, tmp_path: Path
) -> None:
    """More than is packed at once: each row is its own, with its own scales."""
    sizes = {"vocab_size": 20_001, "hidden_size": 72}
    folder = write_tiny_model(tmp_path / "m", "llama", **sizes)
    expected = change_weights(folder)["model.embed_tokens.weight"].numpy()
    engine = build(hf_source(folder), tmp_path / "e", quantization=quantization)
    off = np.abs(unpacked(engine.weights[0]) - expected)
    assert (off <= np.abs(expected).max(axis=1, keepdims=True) * limit).all()


def test_all_that_kernels_are_given_is_aligned(tmp_path: Path) -> None:
    """To 64 bytes, in the file and therefore in memory; odd sizes are padded."""
    folder = write_tiny_model(
        tmp_path / "m", "qwen2", hidden_size=72, intermediate_size=100, vocab_size=333
    )
    engine = build(hf_source(folder), tmp_path / "e", quantization="int8")
    arrays = [*engine.vectors]
    for weight in engine.weights:
        arrays += [
            a for a in (weight.data, weight.scales, weight.bias) if a is not None
        ]
    assert all(array.ctypes.data % 64 == 0 for array in arrays)
    assert not any(array.flags.writeable for array in arrays)
    places = [(op.source_offset, op.target_offset) for op in engine.ops]
    assert all(place == -1 or place % 64 == 0 for pair in places for place in pair)


def test_the_file_is_one_that_the_safetensors_library_reads(tmp_path: Path) -> None:
    """No gaps, no overlaps: its own reader is stricter than ours."""
    from safetensors.numpy import load_file  # noqa: PLC0415 - the oracle

    folder = write_tiny_model(tmp_path / "m", "qwen2")
    engine = build(hf_source(folder), tmp_path / "e", quantization="int8")
    stored = load_file(tmp_path / "e" / WEIGHTS_NAME)
    np.testing.assert_array_equal(stored["embedding.data"], engine.weights[0].data)
    assert sum(a.nbytes for a in stored.values()) == engine.memory.weights_bytes


def test_activations_share_memory(tmp_path: Path) -> None:
    """Of three layers each reuses what the one before left."""
    folder = write_tiny_model(tmp_path / "m", "llama")
    memory = build(hf_source(folder), tmp_path / "e", quantization="int8").memory
    assert memory.arena_bytes < memory.unshared_arena_bytes / 3


def test_progress_ends_where_the_file_ends(tmp_path: Path) -> None:
    """It rises to the bytes of all weights."""
    seen: list[tuple[str, int, int]] = []
    folder = write_tiny_model(tmp_path / "m", "llama")
    (tmp_path / "e").mkdir()
    build_engine_directory(
        hf_source(folder),
        BuildOptions(),
        tmp_path / "e",
        lambda *report: seen.append(report),
    )
    total = read_engine(tmp_path / "e").memory.weights_bytes
    assert seen == sorted(seen)
    assert seen[-1] == ("build", total, total)


def test_the_directory_is_a_model_of_its_own(tmp_path: Path) -> None:
    """Configuration and tokenizer come along, weights and their index do not."""
    folder = write_tiny_model(tmp_path / "m", "llama")
    for name in ("tokenizer.json", "chat_template.jinja", "notes.md", "x.index.json"):
        (folder / name).write_text("{}")
    build(hf_source(folder), tmp_path / "e")
    found = {path.name for path in (tmp_path / "e").iterdir()}
    assert {"config.json", "tokenizer.json", "chat_template.jinja"} <= found
    assert found.isdisjoint({"notes.md", "x.index.json", "model.safetensors"})
