"""Rotary scaling in a GGUF reaches the converted model or is refused."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from hybrid.scheduler.errors import CheckpointError
from tests.backends.conversion_stand import convert, load
from tests.backends.tiny_checkpoints import (
    gguf_tensors,
    logits_of,
    make_model,
    write_gguf,
)

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_llama3_rope_factors_become_rope_scaling(tmp_path: Path) -> None:
    """The factors' tensor gives the settings that computed it, and their logits."""
    model = make_model("llama", head_dim=64, rope_parameters=LLAMA3)
    plain = make_model("llama", head_dim=64).model.rotary_emb.inv_freq
    base = 500000.0 ** -(torch.arange(0, 64, 2) / 64)
    factors = (base / model.model.rotary_emb.inv_freq).numpy().astype(np.float32)
    assert plain.shape == base.shape
    tensors = gguf_tensors(model) | {"rope_freqs.weight": factors}
    source = write_gguf(tmp_path / "tiny.gguf", model, tensors=tensors)
    directory = convert(source, tmp_path)
    config = json.loads((directory / "config.json").read_text())
    assert config["rope_parameters"] == LLAMA3
    torch.testing.assert_close(
        logits_of(load(directory)), logits_of(model), rtol=0, atol=1e-5
    )


def test_other_rope_factors_are_refused(tmp_path: Path) -> None:
    """Factors that no setting gives are an error that names their tensor."""
    model = make_model("llama")
    tensors = gguf_tensors(model)
    tensors["rope_freqs.weight"] = np.linspace(1, 3, 8, dtype=np.float32)
    source = write_gguf(tmp_path / "tiny.gguf", model, tensors=tensors)
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        convert(source, tmp_path)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (gguf.RopeScalingType.LINEAR, {"rope_type": "linear", "factor": 4.0}),
        (
            gguf.RopeScalingType.YARN,
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        ),
        (gguf.RopeScalingType.NONE, None),
        (gguf.RopeScalingType.LONGROPE, "longrope"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_rope_scaling_is_honoured_or_refused(
    tmp_path: Path, kind: gguf.RopeScalingType, expected: object
) -> None:
    """Scaling that the metadata name reaches the config, or is refused by name."""

    def scaling(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(kind)
        if kind is not gguf.RopeScalingType.NONE:
            writer.add_rope_scaling_factor(4.0)
            writer.add_rope_scaling_orig_ctx_len(32)

    source = write_gguf(tmp_path / "t.gguf", make_model("qwen2"), metadata=scaling)
    if isinstance(expected, str):
        with pytest.raises(CheckpointError, match=expected):
            convert(source, tmp_path)
        return
    config = json.loads((convert(source, tmp_path) / "config.json").read_text())
    default = {"rope_type": "default"} if expected is None else expected
    assert config["rope_parameters"] == {"rope_theta": 10000.0, **default}


def test_rope_scaling_gives_transformers_logits(tmp_path: Path) -> None:
    """A converted YaRN model computes what transformers computes."""
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    model = make_model("qwen2", rope_parameters=yarn)

    def scaling(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(32)

    source = write_gguf(tmp_path / "tiny.gguf", model, metadata=scaling)
    torch.testing.assert_close(
        logits_of(load(convert(source, tmp_path))), logits_of(model), rtol=0, atol=1e-5
    )


SCALINGS = {
    "attn_factor": (gguf.GGUFWriter.add_rope_scaling_attn_factors, 1.0),
    "yarn_attn_factor": (gguf.GGUFWriter.add_rope_scaling_yarn_attn_factor, 1.0),
    "yarn_beta_fast": (gguf.GGUFWriter.add_rope_scaling_yarn_beta_fast, 32.0),
    "yarn_beta_slow": (gguf.GGUFWriter.add_rope_scaling_yarn_beta_slow, 1.0),
    "yarn_ext_factor": (gguf.GGUFWriter.add_rope_scaling_yarn_ext_factor, 1.0),
    "yarn_log_multiplier": (gguf.GGUFWriter.add_rope_scaling_yarn_log_mul, 0.0),
}


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("kind", [None, gguf.RopeScalingType.YARN])
def test_scaling_keys_are_refused_by_name_unless_neutral(
    tmp_path: Path, name: str, kind: gguf.RopeScalingType | None
) -> None:
    """What each means when absent is taken, with and without YaRN; more is refused."""
    add, neutral = SCALINGS[name]
    configs = []
    for path, value in (("without", None), ("neutral", neutral), ("other", 0.75)):

        def scaling(writer: gguf.GGUFWriter, value: float | None = value) -> None:
            if kind is not None:
                writer.add_rope_scaling_type(kind)
                writer.add_rope_scaling_factor(4.0)
                writer.add_rope_scaling_orig_ctx_len(32)
            if value is not None:
                add(writer, value)

        source = write_gguf(tmp_path / path, make_model("qwen2"), metadata=scaling)
        if value == 0.75:
            with pytest.raises(CheckpointError, match=rf"{name} is 0\.75"):
                convert(source, tmp_path)
        else:
            directory = convert(source, tmp_path)
            configs.append(json.loads((directory / "config.json").read_text()))
    assert configs[0]["rope_parameters"] == configs[1]["rope_parameters"]
