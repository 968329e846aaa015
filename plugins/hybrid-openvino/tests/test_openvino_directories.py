"""IR directories: those that were exported, and those that conversions leave."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import openvino as ov
import pytest
import structlog
from hybrid_openvino import ir_directory
from openvino_stand import distance, load, logits

from hybrid.api import CheckpointError, UnsupportedFeature


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


class Fault(NamedTuple):
    """One text of an IR directory replaced, and what must be said of it."""

    file: str
    old: str
    new: str
    message: str


@pytest.mark.parametrize(
    "fault",
    [
        Fault("openvino_model.xml", '"0,0,0"', '"0,x,0"', "windows '0,x,0'"),
        Fault("openvino_model.xml", '"0,0,0"', '"0,0"', "of 3 layers"),
        Fault("openvino_model.xml", 'names="logits"', 'names="l"', "outputs l;"),
        Fault("config.json", 'embeddings": 512', 'embeddings": 0', "embeddings is 0"),
        Fault("config.json", 'embeddings": 512', 'embeddings": null', "config.json"),
    ],
)
def test_an_ir_that_contradicts_itself_is_refused(
    llama_ir: Path, tmp_path: Path, fault: Fault
) -> None:
    """By what is wrong, not by what broke over it."""
    directory = shutil.copytree(llama_ir, tmp_path / "ir")
    text = (directory / fault.file).read_text("utf-8")
    assert fault.old in text
    (directory / fault.file).write_text(text.replace(fault.old, fault.new), "utf-8")
    with pytest.raises((CheckpointError, UnsupportedFeature), match=fault.message):
        load(directory)


@pytest.mark.parametrize("name", [ir_directory.MODEL_FILE, "openvino_model.bin"])
@pytest.mark.parametrize("damage", ["gone", "empty", "cut"])
def test_a_damaged_conversion_is_made_again(
    llama: Path, tmp_path: Path, name: str, damage: str
) -> None:
    """A file that lost its bytes is told of once; the next start reads the new one."""
    expected = logits(load(llama, cache_dir=tmp_path))
    (directory,) = tmp_path.iterdir()
    file = directory / name
    whole = file.read_bytes()
    kept = {"gone": None, "empty": b"", "cut": whole[: len(whole) // 2]}[damage]
    file.unlink() if kept is None else file.write_bytes(kept)
    with structlog.testing.capture_logs() as events:
        assert np.array_equal(logits(load(llama, cache_dir=tmp_path)), expected)
    assert [event["event"] for event in events] == ["openvino.conversion_broken"]
    assert list(tmp_path.iterdir()) == [directory]
    assert file.stat().st_size > 0


def test_a_conversion_is_for_everyone(llama: Path, tmp_path: Path) -> None:
    """A cache may be shared between users."""
    load(llama, cache_dir=tmp_path)
    (directory,) = tmp_path.iterdir()
    assert directory.stat().st_mode & 0o055 == 0o055


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
    assert np.array_equal(logits(executor), logits(load(llama)))
