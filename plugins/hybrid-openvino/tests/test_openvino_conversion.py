"""A checkpoint becomes an ordinary IR directory, once, or is refused by name."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import structlog
import torch
import transformers
from hybrid_openvino import ir_directory
from hybrid_openvino import options as options_module
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


def test_a_conversion_is_done_once(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second start reads what the first one kept, and nothing else."""
    first = logits(load(llama, cache_dir=tmp_path))

    def fail(*_: object) -> None:
        pytest.fail("converted again")

    monkeypatch.setattr(ir_directory, "_convert", fail)
    assert np.array_equal(logits(load(llama, cache_dir=tmp_path)), first)
    with pytest.raises(pytest.fail.Exception):
        load(llama, cache_dir=tmp_path, weights="bf16")


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_what_is_kept_is_an_ir_directory(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Loaded as one it answers alike: windows and configuration travel along."""
    expected = logits(load(request.getfixturevalue(kind), cache_dir=tmp_path))
    (directory,) = tmp_path.iterdir()
    assert np.array_equal(logits(load(directory)), expected)


def test_windows_of_a_foreign_ir_come_from_its_configuration(
    mistral: Path, tmp_path: Path
) -> None:
    """An export without our note is not run as if it saw everything."""
    expected = logits(load(mistral, cache_dir=tmp_path))
    (directory,) = tmp_path.iterdir()
    file = directory / ir_directory.MODEL_FILE
    text = file.read_text("utf-8")
    assert "sliding_windows" in text
    file.write_text(text.replace("sliding_windows", "something_else"), "utf-8")
    assert distance(logits(load(directory)), expected) < 1e-6
    config = json.loads((directory / "config.json").read_text("utf-8"))
    (directory / "config.json").write_text(
        json.dumps(config | {"sliding_window": None}), "utf-8"
    )
    assert distance(logits(load(directory)), expected) > 1e-3


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


def test_a_broken_or_foreign_xml_is_refused(llama_ir: Path, tmp_path: Path) -> None:
    """The error names the file, or what the model lacks."""
    directory = shutil.copytree(llama_ir, tmp_path / "ir")
    file = directory / ir_directory.MODEL_FILE
    file.write_text("<net", "utf-8")
    with pytest.raises(CheckpointError, match=r"openvino_model\.xml"):
        load(directory)
    parameter = ov.opset13.parameter([1, 4], ov.Type.f32, name="x")
    ov.save_model(ov.Model([ov.opset13.relu(parameter)], [parameter]), file)
    with pytest.raises(UnsupportedFeature, match="cache as state"):
        load(directory)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "int3"}, "weights is 'int3', must be one of auto, f32"),
        ({"int4_group_size": 0}, "int4_group_size is 0"),
        ({"int4_group_size": True}, "int4_group_size is True"),
        ({"int4_group_size": 32}, "int4_group_size is 32, but weights is 'f32'"),
        ({"INFERENCE_NUM_THREADS": 2}, "num_threads is 1; give one"),
        ({"kv": 1}, "unknown option 'kv'.*KV_CACHE_PRECISION"),
        ({"NETWORK_NAME": "x"}, "unknown option 'NETWORK_NAME'"),
        ({"KV_CACHE_PRECISION": "u3"}, "KV_CACHE_PRECISION=u3"),
        ({"INFERENCE_PRECISION_HINT": "bf16"}, "choose the precision by dtype"),
    ],
)
def test_a_bad_option_is_refused(
    llama: Path, options: dict[str, Any], message: str
) -> None:
    """With its name and value, and what there is."""
    with pytest.raises(ConfigError, match=message):
        load(llama, **options)


@pytest.mark.parametrize("options", [{"weights": "int4"}, {"int4_group_size": 32}])
def test_an_ir_stores_its_weights_already(
    llama_ir: Path, options: dict[str, Any]
) -> None:
    """An option that would do nothing is refused, not dropped."""
    with pytest.raises(ConfigError, match="stored already"):
        load(llama_ir, **options)


def test_a_missing_compressor_is_named_before_anything_is_done(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command that installs it."""
    monkeypatch.setattr(options_module, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"NNCF: pip install 'hybrid-openvino\[wei"):
        load(llama, weights="int8")


def test_an_ir_without_its_configuration_is_refused(
    llama_ir: Path, tmp_path: Path
) -> None:
    """By the file that is missing."""
    directory = shutil.copytree(llama_ir, tmp_path / "ir")
    (directory / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load(directory)


def test_a_cache_that_cannot_be_written_stops_no_model(
    llama: Path, tmp_path: Path
) -> None:
    """The conversion runs from memory, and a warning says that it was not kept."""
    (tmp_path / "cache").write_text("a file, no folder", "utf-8")
    with structlog.testing.capture_logs() as events:
        executor = load(llama, cache_dir=tmp_path / "cache")
    assert [event["event"] for event in events] == ["openvino.conversion_not_kept"]
    assert distance(logits(executor), _own_logits(llama)[-1:]) < 1e-5


def test_a_group_that_divides_nothing_is_refused(llama: Path) -> None:
    """By the option's name and value."""
    pytest.importorskip("nncf", reason="the extra `weights` is not installed")
    with pytest.raises(ConfigError, match="int4_group_size is 48"):
        load(llama, weights="int4", int4_group_size=48)
