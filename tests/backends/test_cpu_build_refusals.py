"""What cannot be built is refused by name: numbers, parameters, sizes, formats."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.scheduler.errors import CheckpointError, ConfigError, UnsupportedFeature
from hybrid.testing.models import write_tiny_model
from tests.backends.built_cpu_engine import build, hf_source
from tests.backends.model_directory import change_config, change_weights
from tests.backends.plan_interpreter import unpacked


@pytest.mark.parametrize(
    ("quantization", "number", "told"),
    [
        ("int8", float("nan"), "holds what is no finite number"),
        ("int8", 1e7, "has a number of 1e+07; int8 holds up to 8.31901e+06; {hint}"),
        ("int4", float("inf"), "holds what is no finite number"),
        ("int4", 4e4, "has a number of 40000; int4 holds up to 32768; {hint}"),
    ],
)
def test_numbers_that_integers_cannot_hold_are_refused(
    quantization: str, number: float, told: str, tmp_path: Path
) -> None:
    """By the parameter's name, the number and the limit; floats keep them.

    What is no number is told as with floats, where the check of the built model finds
    it: no other quantization would help.
    """
    folder = write_tiny_model(tmp_path / "m", "llama")
    name = "model.layers.1.self_attn.o_proj.weight"
    weight = change_weights(folder)[name]
    weight[3, 5] = number
    change_weights(folder, **{name.replace(".", "__"): weight})
    message = f"{name} {told.format(hint='use quantization=bf16')}"
    with pytest.raises(CheckpointError, match=re.escape(message)):
        build(hf_source(folder), tmp_path / "e", quantization=quantization)
    kept = build(hf_source(folder), tmp_path / "f", quantization="bf16")
    output = next(w for w in kept.weights if w.name == "layers.1.o")
    np.testing.assert_allclose(unpacked(output)[3, 5], number, rtol=2**-8)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"lm_head__weight": None}, "lm_head.weight has shape None in the files"),
        ({"model__norm__extra": torch.ones(4)}, "model.norm.extra .*None in the plan"),
        (
            {"model__norm__weight": torch.ones(4)},
            r"model.norm.weight .*\(4,\) in the files and \(64,\) in the plan",
        ),
        (
            {"model__norm__weight": torch.ones(64, dtype=torch.int8)},
            "model.norm.weight is stored as I8",
        ),
    ],
)
def test_files_of_another_model_are_refused(
    changes: dict[str, torch.Tensor | None], told: str, tmp_path: Path
) -> None:
    """Whoever stands in has rules of his own for them, or a better message."""
    folder = write_tiny_model(tmp_path / "m", "llama")
    change_weights(folder, **changes)
    with pytest.raises(UnsupportedFeature, match=told):
        build(hf_source(folder), tmp_path / "e")


def test_old_rotary_frequencies_in_the_files_change_nothing(tmp_path: Path) -> None:
    """Early Llamas hold them; transformers computes its own, and so does the build."""
    folder = write_tiny_model(tmp_path / "m", "llama")
    name = "model__layers__0__self_attn__rotary_emb__inv_freq"
    change_weights(folder, **{name: torch.zeros(8)})
    engine = build(hf_source(folder), tmp_path / "e", quantization="fp32")
    assert engine.shape.inverse_frequencies[0] == 1


def test_a_configuration_of_a_giant_is_refused_at_once(tmp_path: Path) -> None:
    """Sizes that no file can fill are named before anything is planned."""
    folder = write_tiny_model(tmp_path / "m", "llama")
    change_config(folder, num_hidden_layers=10**9)
    with pytest.raises(CheckpointError, match="num_hidden_layers is 1000000000"):
        build(hf_source(folder), tmp_path / "e")


@pytest.mark.parametrize("form", [CheckpointFormat.GGUF, CheckpointFormat.COMPILED])
def test_only_checkpoints_are_built(form: CheckpointFormat, tmp_path: Path) -> None:
    """A GGUF is converted before, an engine is built already."""
    with pytest.raises(ConfigError, match=f"is {form}"):
        build(ModelSource("m", tmp_path, form), tmp_path / "e")
