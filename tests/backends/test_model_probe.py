"""The probe at load: it compares, and what it compares decides."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hybrid.backends.pytorch import paged_attention
from hybrid.backends.pytorch.step_attention import StepAttention
from hybrid.scheduler import CheckpointError, UnsupportedFeature
from hybrid.testing import write_tiny_model
from tests.backends.engine_stand import load_torch
from tests.backends.model_directory import change_config, change_weights

WEIGHT = "model.layers.0.mlp.up_proj.weight"


def test_a_model_whose_paged_answer_differs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention that forgets its history in decode is caught before any request."""
    original = paged_attention.attend_generations

    def forgetful(
        step: StepAttention,
        layer: int,
        query: torch.Tensor,
        options: paged_attention.AttentionOptions,
    ) -> torch.Tensor:
        return original(step, layer, query, options) * 0.5

    monkeypatch.setattr(
        "hybrid.backends.pytorch.attention_function.attend_generations", forgetful
    )
    with pytest.raises(UnsupportedFeature, match="changes when its cache is paged"):
        load_torch(write_tiny_model(tmp_path, "llama"), 16)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_no_finite_number_is_named(
    tmp_path: Path, value: float
) -> None:
    """Instead of an answer that "changes when paged" by nan."""
    write_tiny_model(tmp_path, "llama")
    weight = load_file(tmp_path / "model.safetensors")[WEIGHT]
    weight[0, 0] = value
    change_weights(tmp_path, **{WEIGHT.replace(".", "__"): weight})
    with pytest.raises(
        CheckpointError, match=f"logits .* in float32 are not finite: {WEIGHT} holds"
    ):
        load_torch(tmp_path, 16)


def test_a_config_that_makes_no_finite_answer_is_refused(tmp_path: Path) -> None:
    """With whole weights it is config.json that is at fault."""
    write_tiny_model(tmp_path, "llama")
    change_config(tmp_path, rms_norm_eps=float("nan"))
    with pytest.raises(UnsupportedFeature, match=r"not finite.*config\.json"):
        load_torch(tmp_path, 16)


def test_a_rotation_that_is_no_number_is_named(tmp_path: Path) -> None:
    """What is computed from config.json at load is looked at too."""
    write_tiny_model(tmp_path, "llama")
    change_config(
        tmp_path, rope_parameters={"rope_type": "default", "rope_theta": float("nan")}
    )
    with pytest.raises(CheckpointError, match=r"not finite: .*inv_freq holds"):
        load_torch(tmp_path, 16)
