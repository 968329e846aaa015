"""A GGUF is converted once, whole or not at all, whoever asks at once."""

import os
import threading
from pathlib import Path

import pytest

from hybrid.backends.checkpoint.gguf_conversion import convert_gguf
from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.scheduler.errors import CheckpointError, ConfigError
from tests.backends.conversion_stand import convert, load
from tests.backends.tiny_checkpoints import (
    make_model,
    write_gguf,
)


def test_conversion_happens_once_per_file_and_dtype(tmp_path: Path) -> None:
    """The second call finds the first one's directory; another dtype gets its own."""
    source = write_gguf(tmp_path / "tiny.gguf", make_model("llama"))
    stages: list[tuple[str, int, int]] = []

    def note(stage: str, done: int, total: int) -> None:
        stages.append((stage, done, total))

    cache = tmp_path / "converted"
    first = convert_gguf(source, dtype="float32", cache_dir=cache, progress=note)
    assert stages
    assert stages[-1][0] == "convert"
    assert stages[-1][1] == stages[-1][2]
    stages.clear()
    again = convert_gguf(source, dtype="float32", cache_dir=cache, progress=note)
    other = convert_gguf(source, dtype="bfloat16", cache_dir=cache)
    assert again == first
    assert stages == []
    assert other.path != first.path
    assert first.format is CheckpointFormat.HF_DIRECTORY
    assert first.name == source.name
    assert convert_gguf(first, dtype="float32", cache_dir=cache) == first


def test_changed_file_is_converted_anew(tmp_path: Path) -> None:
    """A file that was replaced does not answer with the old weights."""
    path = tmp_path / "tiny.gguf"
    old = convert(write_gguf(path, make_model("llama")), tmp_path)
    new = convert(write_gguf(path, make_model("llama", num_hidden_layers=1)), tmp_path)
    assert old != new


def test_broken_conversion_is_done_again(tmp_path: Path) -> None:
    """A cached directory whose weights were cut short is replaced."""
    model = make_model("llama")
    source = write_gguf(tmp_path / "tiny.gguf", model)
    weights = convert(source, tmp_path) / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-100])
    directory = convert(source, tmp_path)
    assert (directory / "model.safetensors").read_bytes() == content
    assert [entry.name for entry in (tmp_path / "converted").iterdir()] == [
        directory.name
    ]


@pytest.mark.parametrize("content", ["", "{}", "\0" * 64, None])
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    ],
)
def test_conversion_with_a_broken_json_file_is_done_again(
    tmp_path: Path, name: str, content: str | None
) -> None:
    """After a loss of power a file may be there and empty."""
    source = write_gguf(tmp_path / "tiny.gguf", make_model("llama"))
    path = convert(source, tmp_path) / name
    before = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert convert(source, tmp_path) == path.parent
    assert path.read_bytes() == before


def test_a_cache_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    """Named, like a full disk."""
    source = write_gguf(tmp_path / "tiny.gguf", make_model("llama"))
    (tmp_path / "converted").touch()
    with pytest.raises(CheckpointError, match=r"cannot be converted into .*converted"):
        convert(source, tmp_path)


def test_conversions_at_once_do_not_meet(tmp_path: Path) -> None:
    """Many converters of one file all end with the same whole directory."""
    source = write_gguf(tmp_path / "tiny.gguf", make_model("llama"))
    barrier = threading.Barrier(4, timeout=60)
    results: list[Path] = []

    def run() -> None:
        barrier.wait()
        results.append(convert(source, tmp_path))

    threads = [threading.Thread(target=run, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len(set(results)) == 1
    assert len(list((tmp_path / "converted").iterdir())) == 1
    load(results[0])


def test_unknown_dtype_is_a_config_error(tmp_path: Path) -> None:
    """The error names what a GGUF converts to."""
    source = ModelSource("tiny", tmp_path / "none.gguf", CheckpointFormat.GGUF)
    with pytest.raises(ConfigError, match=r"int8.*float32, bfloat16, float16"):
        convert(source, tmp_path, "int8")


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    """A path that is no file is named."""
    source = ModelSource("tiny", tmp_path / "none.gguf", CheckpointFormat.GGUF)
    with pytest.raises(CheckpointError, match=r"none\.gguf is no file"):
        convert(source, tmp_path)


def test_old_leftovers_are_removed_and_young_ones_stay(tmp_path: Path) -> None:
    """A conversion killed days ago is swept; one that may still run is left alone."""
    cache = tmp_path / "converted"
    old, young = cache / ".converting-old", cache / ".converting-young"
    for path in (old, young):
        path.mkdir(parents=True)
    os.utime(old, (0, 0))
    convert(write_gguf(tmp_path / "tiny.gguf", make_model("llama")), tmp_path)
    assert not old.exists()
    assert young.exists()
