"""A checkpoint becomes an ordinary model with the same answers, or is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
import transformers
from openvino_stand import TOKEN_IDS, distance, load, logits, make_plan

from hybrid.api import CheckpointError, ConfigError, UnsupportedFeature
from hybrid.testing import write_tiny_model


def _own_logits(folder: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32
    )
    with torch.inference_mode():
        output = model(torch.tensor([TOKEN_IDS]), use_cache=False)
    rows: np.ndarray[Any, np.dtype[np.float32]] = output.logits[0].numpy()
    return rows


def _storage(weights: str) -> dict[str, Any]:
    """Options; the tiny matrices want small groups."""
    groups = {"int4_group_size": 16} if weights == "int4" else {}
    return {"weights": weights} | groups


def test_every_wanted_row_is_transformers_own(llama: Path, llama_ir: Path) -> None:
    """As many of the last rows as are asked for, in order, and no other."""
    executor, expected = load(llama_ir), _own_logits(llama)
    for num_rows in (1, 2, len(TOKEN_IDS)):
        found = logits(executor, make_plan(num_rows=num_rows))
        assert found.shape == (num_rows, expected.shape[1])
        assert distance(found, expected[-num_rows:]) < 1e-5


def test_a_step_may_want_no_row(llama: Path, llama_ir: Path) -> None:
    """A chunk that is not the last of its prompt yields an empty array."""
    executor = load(llama_ir)
    assert logits(executor, make_plan(TOKEN_IDS[:40], num_rows=0)).shape == (0, 320)
    assert (
        distance(logits(executor, make_plan(num_computed=40)), _own_logits(llama)[-1:])
        < 1e-5
    )


@pytest.mark.parametrize(
    ("weights", "most", "bits"),
    [("f32", 1e-5, 32), ("bf16", 0.02, 16), ("int8", 0.12, 8), ("int4", 0.9, 5)],
)
def test_weights_are_stored_in_as_many_bits_as_asked(
    llama: Path, tmp_path: Path, weights: str, most: float, bits: int
) -> None:
    """The file shrinks, and the answer stays as near as so many bits allow."""
    if weights.startswith("int"):
        pytest.importorskip("nncf", reason="the extra `weights` is not installed")
    executor = load(llama, cache_dir=tmp_path, **_storage(weights))
    assert distance(logits(executor), _own_logits(llama)[-1:]) < most
    (directory,) = tmp_path.iterdir()
    size = (directory / "openvino_model.bin").stat().st_size
    num_weights = sum(
        parameter.numel()
        for parameter in transformers.AutoModelForCausalLM.from_pretrained(
            llama
        ).parameters()
    )
    # Scales, small constants and int4's int8 matrices come on top.
    assert size * 8 < num_weights * bits * 1.5


def test_a_soft_cap_is_refused(tmp_path: Path) -> None:
    """OpenVINO's paged attention has none, and would leave it out in silence."""
    folder = write_tiny_model(tmp_path / "m", "gemma2")
    with pytest.raises(UnsupportedFeature, match=r"Gemma2\w+ uses soft-capped"):
        load(folder)


def test_a_conversion_that_answers_otherwise_is_refused(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace that lost something is found before it is kept."""
    from hybrid_openvino import traced_model  # noqa: PLC0415 - to break it

    real = traced_model.ov.convert_model

    def broken(*args: Any, **keywords: Any) -> ov.Model:
        model = real(*args, **keywords)
        for node in model.get_ops():
            if node.get_type_name() == "Cos":
                node.output(0).replace(node.input_value(0))
        return model

    monkeypatch.setattr(traced_model.ov, "convert_model", broken)
    with pytest.raises(UnsupportedFeature, match="LlamaForCausalLM: its converted"):
        load(llama)


def test_a_weight_that_is_no_number_is_found(tmp_path: Path) -> None:
    """As a fault of the files, not of the conversion."""
    folder = write_tiny_model(tmp_path / "m", "llama")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.norm.weight[3] = float("nan")
    model.save_pretrained(folder)
    with pytest.raises(CheckpointError, match="not finite"):
        load(folder)


def test_a_group_that_divides_nothing_is_refused(llama: Path) -> None:
    """By the option's name and value."""
    pytest.importorskip("nncf", reason="the extra `weights` is not installed")
    with pytest.raises(ConfigError, match="int4_group_size is 48"):
        load(llama, weights="int4", int4_group_size=48)
