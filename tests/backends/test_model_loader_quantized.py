"""Quantised weights are refused by name, never read as plain ones."""

from pathlib import Path

import pytest
import torch

from hybrid.scheduler.errors import CheckpointError, UnsupportedFeature
from tests.backends.model_directory import change_config, change_weights, load, save
from tests.backends.tiny_checkpoints import make_model

QUANTIZED = [
    {"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": True},
    {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": False},
    {"quant_method": "awq", "modules_to_not_convert": ["lm_head"]},
    {"quant_method": "gptq", "modules_in_block_to_quantize": [["q"]]},
    {"quant_method": "gptq", "lm_head": True},
    {"quant_method": "fp8"},
    {"quant_method": "compressed-tensors", "config_groups": {}},
    {"bits": 4},
    {},
    "gptq",
]


@pytest.mark.parametrize("settings", QUANTIZED, ids=range(len(QUANTIZED)))
def test_quantised_config_is_refused_by_name(
    tmp_path: Path, settings: dict[str, object] | str
) -> None:
    """Every quirk of a quantised config is a refusal that repeats it."""
    save(tmp_path, make_model("llama"))
    change_config(tmp_path, quantization_config=settings)
    with pytest.raises(UnsupportedFeature) as caught:
        load(tmp_path)
    assert "quantization_config" in str(caught.value)
    if isinstance(settings, dict):
        assert str(settings.get("quant_method", "unknown")) in str(caught.value)
        for key in settings:
            assert key in str(caught.value)


@pytest.mark.parametrize("name", ["quantize_config.json", "quant_config.json"])
def test_old_quantisation_files_are_refused(tmp_path: Path, name: str) -> None:
    """Settings that stand in a file of their own count too."""
    save(tmp_path, make_model("llama"))
    (tmp_path / name).write_text('{"bits": 4, "group_size": -1}')
    with pytest.raises(UnsupportedFeature, match=rf"{name}.*group_size=-1"):
        load(tmp_path)


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    """Numbers that would need a scale are never taken for weights."""
    save(tmp_path, make_model("llama"))
    down = "model__layers__0__mlp__down_proj__weight"
    change_weights(tmp_path, **{down: torch.ones(64, 96, dtype=torch.int8)})
    with pytest.raises(UnsupportedFeature, match=r"down_proj\.weight is stored as I8"):
        load(tmp_path)


def test_quantised_tensors_without_config_are_named(tmp_path: Path) -> None:
    """Packed weights whose settings got lost are missing parameters, not random."""
    save(tmp_path, make_model("llama"))
    change_weights(
        tmp_path,
        model__layers__0__mlp__down_proj__weight=None,
        model__layers__0__mlp__down_proj__qweight=torch.ones(12, 64, dtype=torch.int32),
    )
    with pytest.raises(CheckpointError, match=r"down_proj\.weight.*down_proj\.qweight"):
        load(tmp_path)
