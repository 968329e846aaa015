"""The null executor reads sizes from a checkpoint's configuration, or says why not."""

from pathlib import Path

import pytest

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import ExecutorConfig, ModelInfo
from hybrid.backends.null.executor import NullExecutor
from hybrid.scheduler import CheckpointError, ConfigError


def _load(folder: Path, text: str | None, **options: object) -> ModelInfo:
    if text is not None:
        (folder / "config.json").write_text(text, "utf-8")
    source = ModelSource("m", folder, CheckpointFormat.HF_DIRECTORY)
    return NullExecutor().load(source, ExecutorConfig(options=options))


def test_sizes_come_from_options_then_files_then_defaults(tmp_path: Path) -> None:
    """An option wins over config.json, which wins over what it would take."""
    text = '{"vocab_size": 77, "max_position_embeddings": 99}'
    info = _load(tmp_path, text, max_model_len=50)
    assert (info.vocab_size, info.max_model_len) == (77, 50)
    assert _load(tmp_path, "{}").vocab_size == 512


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_directory_that_is_no_model_is_refused(
    tmp_path: Path, text: str | None
) -> None:
    """Without config.json, or with one that holds no object."""
    with pytest.raises(CheckpointError, match=r"config\.json"):
        _load(tmp_path, text)


def test_a_size_that_is_no_number_is_refused(tmp_path: Path) -> None:
    """By its name and value."""
    with pytest.raises(ConfigError, match="vocab_size is 'many'"):
        _load(tmp_path, '{"vocab_size": "many"}')
