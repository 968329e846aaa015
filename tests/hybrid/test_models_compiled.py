"""A directory in one executor's own form is found as such, by that executor alone."""

from pathlib import Path

import pytest

from hybrid import CheckpointError, ConfigError, ModelNotFound
from hybrid.backends.checkpoint.model_source import CheckpointFormat
from hybrid.backends.interface import KVSpec
from hybrid.bridge import KVOrder
from hybrid.models.resolve import resolve_model
from hybrid.tokenizer.tokenizer import Tokenizer


def _write(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_text("{}", encoding="utf-8")
    return folder


def test_a_directory_with_a_compiled_file_is_the_executors(tmp_path: Path) -> None:
    """The file that the executor names wins over config.json and safetensors."""
    folder = _write(tmp_path / "m", "config.json", "a.safetensors", "engine.xml")
    source = resolve_model(str(folder), compiled_files=("engine.xml",))
    assert source.format is CheckpointFormat.COMPILED
    assert source.path == folder


def test_another_executor_does_not_take_it_for_its_own(tmp_path: Path) -> None:
    """Who names no such file sees a directory without a model."""
    folder = _write(tmp_path / "m", "engine.xml")
    with pytest.raises(ModelNotFound, match="without config"):
        resolve_model(str(folder), compiled_files=("other.plan",))


def test_a_changed_compiled_file_changes_the_fingerprint(tmp_path: Path) -> None:
    """Prefixes cached for one build are never reused for another."""
    folder = _write(tmp_path / "m", "config.json", "engine.xml")
    before = resolve_model(str(folder), compiled_files=("engine.xml",)).fingerprint
    (folder / "engine.xml").write_text("{ }", encoding="utf-8")
    after = resolve_model(str(folder), compiled_files=("engine.xml",)).fingerprint
    assert before != after


def test_cells_of_an_own_format_have_the_size_that_they_say() -> None:
    """A quantised cache counts its scales; a plain one counts elements."""
    sizes = {"num_layers": 3, "num_kv_heads": 2, "head_dim": 16}
    plain = KVSpec(
        **sizes, dtype="float32", order=KVOrder.LAYER_FIRST, available_bytes=1
    )
    assert plain.block_bytes(32) == 3 * 2 * 2 * 32 * 16 * 4
    own = KVSpec(
        **sizes,
        dtype="uint8",
        order=KVOrder.LAYER_FIRST,
        available_bytes=1,
        cell_bytes=4864,
    )
    assert own.block_bytes(32) == 3 * 4864
    with pytest.raises(ConfigError, match="uint8"):
        own.layout(1, 32)


def test_a_compiled_form_without_a_tokenizer_says_what_to_copy(tmp_path: Path) -> None:
    """Compilers leave it behind; one that is there and broken is no absent one."""
    folder = _write(tmp_path / "m", "config.json", "rank0.engine")
    with pytest.raises(CheckpointError, match="copy it from the checkpoint, with tok"):
        Tokenizer.from_directory(folder)
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"can be loaded: [A-Z]"):
        Tokenizer.from_directory(folder)
