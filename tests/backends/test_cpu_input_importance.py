"""Importance is what the matrices of a model multiply, squared and averaged."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from hybrid.backends.cpu.abi import Format
from hybrid.backends.cpu.input_importance import measure_importance
from hybrid.scheduler.errors import CheckpointError
from hybrid.testing.models import write_tiny_model
from tests.backends.built_cpu_engine import build, hf_source
from tests.backends.model_directory import change_weights
from tests.backends.plan_interpreter import unpacked


def _with_a_loud_channel(folder: Path) -> Path:
    """A tiny model one channel of which carries thirty times as much in one norm."""
    write_tiny_model(folder, "llama")
    name = "model.layers.1.post_attention_layernorm.weight"
    norm = change_weights(folder)[name]
    norm[5] = 30
    change_weights(folder, **{name.replace(".", "__"): norm})
    return folder


def test_every_matrix_is_measured(tmp_path: Path) -> None:
    """One number a column, the same in every run, and none that is not finite."""
    folder = write_tiny_model(tmp_path / "m", "qwen3")
    found, again = measure_importance(folder), measure_importance(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    columns = {
        f"{name}.weight": layer.in_features
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear)
    }
    assert {name: len(values) for name, values in found.items()} == columns
    for name, values in found.items():
        assert (values > 0).all()
        np.testing.assert_array_equal(values, again[name])


def test_a_loud_channel_is_found(tmp_path: Path) -> None:
    """Where it is multiplied, and by how much: thirty, squared."""
    found = measure_importance(_with_a_loud_channel(tmp_path / "m"))
    loud = found["model.layers.1.mlp.up_proj.weight"]
    others = np.delete(loud, 5)
    assert 300 < loud[5] / others.mean() < 2700
    quiet = found["model.layers.0.mlp.up_proj.weight"]
    assert quiet.max() < 20 * quiet.mean()


def test_four_bits_are_spent_where_the_model_is_loud(tmp_path: Path) -> None:
    """The loud column of a built engine is nearer to its numbers than the others."""
    folder = _with_a_loud_channel(tmp_path / "m")
    engine = build(hf_source(folder), tmp_path / "e", quantization="int4")
    joined = next(w for w in engine.weights if w.name == "layers.1.gate_up")
    assert joined.format is Format.INT4
    weights = change_weights(folder)
    exact = torch.cat(
        [weights[f"model.layers.1.mlp.{part}_proj.weight"] for part in ("gate", "up")]
    )
    off = np.square(unpacked(joined) - exact.numpy()).mean(axis=0)
    assert off[5] < np.delete(off, 5).mean() / 2


def test_numbers_that_overflow_count_nothing(tmp_path: Path) -> None:
    """A model whose activations are not finite is found out by its own check."""
    folder = write_tiny_model(tmp_path / "m", "llama")
    name = "model.norm.weight"
    norm = change_weights(folder)[name]
    norm[3] = float("inf")
    change_weights(folder, **{name.replace(".", "__"): norm})
    assert np.isfinite(measure_importance(folder)["lm_head.weight"]).all()


def test_files_that_cannot_be_loaded_are_named(tmp_path: Path) -> None:
    """The loader's own message says which file is missing."""
    folder = write_tiny_model(tmp_path / "m", "llama")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors"):
        measure_importance(folder)
