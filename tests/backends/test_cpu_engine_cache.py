"""Engines are built once, kept whole, and found without what built them."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.cpu import engine_build
from hybrid.backends.cpu.build_options import BuildOptions
from hybrid.backends.cpu.engine_build import build_engine_directory
from hybrid.backends.cpu.engine_cache import find_or_build
from hybrid.backends.cpu.engine_directory import (
    ENGINE_VERSION,
    MANIFEST_NAME,
    WEIGHTS_NAME,
    BuiltEngine,
)
from hybrid.backends.interface import ExecutorConfig
from hybrid.scheduler.errors import CheckpointError, ConfigError, UnsupportedFeature
from hybrid.testing.models import write_tiny_model

INT8 = BuildOptions(quantization="int8")


@pytest.fixture
def source(llama: Path) -> ModelSource:
    """The tiny Llama."""
    return ModelSource("tiny", llama, CheckpointFormat.HF_DIRECTORY)


@pytest.fixture
def config(tmp_path: Path) -> ExecutorConfig:
    """Keeps engines in a folder that is not there yet."""
    return ExecutorConfig(cache_dir=tmp_path / "executors" / "cpu")


def _kept(config: ExecutorConfig) -> list[str]:
    assert config.cache_dir is not None
    return sorted(path.name for path in config.cache_dir.iterdir())


def test_what_was_built_is_found(
    source: ModelSource, config: ExecutorConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second start builds nothing, and checks nothing that was accepted once."""
    checked: list[BuiltEngine] = []
    first = find_or_build(source, config, INT8, check=checked.append)
    monkeypatch.setattr(engine_build, "build_engine_directory", None)
    second = find_or_build(source, config, INT8, check=checked.append)
    assert len(checked) == 1
    assert first.directory == second.directory
    assert first.ops == second.ops


def test_a_start_from_a_kept_engine_imports_no_library_of_models(
    source: ModelSource, config: ExecutorConfig
) -> None:
    """Nor torch, nor gguf: it reads one JSON file and maps one other."""
    find_or_build(source, config, INT8)
    script = f"""
import sys
from pathlib import Path
from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.cpu.build_options import BuildOptions
from hybrid.backends.cpu.engine_cache import find_or_build
from hybrid.backends.interface import ExecutorConfig
source = ModelSource("tiny", Path({str(source.path)!r}), CheckpointFormat.HF_DIRECTORY)
config = ExecutorConfig(cache_dir=Path({str(config.cache_dir)!r}))
engine = find_or_build(source, config, BuildOptions(quantization="int8"))
heavy = {{"torch", "transformers", "gguf", "safetensors", "tokenizers"}}
print(engine.shape.architecture, sorted(heavy & sys.modules.keys()))
"""
    answer = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, "-c", script], capture_output=True, check=True, timeout=60
    )
    assert answer.stdout.decode().split("\n")[-2] == "LlamaForCausalLM []"


@pytest.mark.parametrize(
    ("options", "is_same"),
    [
        (INT8, True),
        (BuildOptions(quantization="int8", kv_cache_dtype="int8"), True),
        (BuildOptions(quantization="int8", dtype="float32"), True),
        (BuildOptions(quantization="bf16"), False),
        (BuildOptions(dtype="float32"), False),
        (BuildOptions(), True),
    ],
)
def test_what_changes_weights_makes_another_engine(
    source: ModelSource, config: ExecutorConfig, options: BuildOptions, *, is_same: bool
) -> None:
    """The cache's dtype changes none, nor does leaving the choice to the model."""
    one = find_or_build(source, config, INT8)
    other = find_or_build(source, config, options)
    assert (one.directory == other.directory) is is_same


def test_a_changed_model_is_built_anew(config: ExecutorConfig, tmp_path: Path) -> None:
    """An engine of files that were overwritten is never used for the new ones."""
    folder = write_tiny_model(tmp_path / "m", "llama")
    source = ModelSource("m", folder, CheckpointFormat.HF_DIRECTORY)
    one = find_or_build(source, config, INT8)
    write_tiny_model(folder, "llama", num_hidden_layers=2)
    other = find_or_build(source, config, INT8)
    assert (one.shape.num_layers, other.shape.num_layers) == (3, 2)
    assert _kept(config) == [other.directory.name]


@pytest.mark.parametrize("raised", [KeyboardInterrupt, OSError(28, "disk full")])
def test_an_interrupted_build_leaves_nothing(
    source: ModelSource,
    config: ExecutorConfig,
    raised: type[BaseException] | BaseException,
) -> None:
    """Neither something that looks whole nor a leftover; the next start builds."""

    def interrupt(_stage: str, done: int, total: int) -> None:
        if done > total / 2:
            raise raised

    expected = KeyboardInterrupt if raised is KeyboardInterrupt else ConfigError
    with pytest.raises(expected):
        find_or_build(source, config, INT8, interrupt)
    assert _kept(config) == []
    assert find_or_build(source, config, INT8).quantization == "int8"


def test_an_engine_that_is_not_accepted_is_not_kept(
    source: ModelSource, config: ExecutorConfig
) -> None:
    """The next start asks again."""

    def refuse(engine: BuiltEngine) -> None:
        raise UnsupportedFeature(f"{engine.quantization} is off")

    with pytest.raises(UnsupportedFeature, match="int8 is off"):
        find_or_build(source, config, INT8, check=refuse)
    assert _kept(config) == []


@pytest.mark.parametrize("name", [WEIGHTS_NAME, MANIFEST_NAME])
def test_a_damaged_engine_is_built_again(
    source: ModelSource, config: ExecutorConfig, name: str
) -> None:
    """As after a loss of power: half a file, in place of the whole one."""
    directory = find_or_build(source, config, INT8).directory
    content = (directory / name).read_bytes()
    (directory / name).write_bytes(content[: len(content) // 2])
    assert find_or_build(source, config, INT8).directory == directory
    assert (directory / name).read_bytes() == content
    assert len(_kept(config)) == 1


def test_without_a_cache_nothing_is_kept(
    source: ModelSource, config: ExecutorConfig
) -> None:
    """The engine works all the same: its file stays mapped."""
    kept = find_or_build(source, config, INT8)
    engine = find_or_build(source, replace(config, cache_dir=None), INT8)
    assert not engine.directory.exists()
    assert engine.weights[-1].data.tobytes() == kept.weights[-1].data.tobytes()


@pytest.mark.parametrize("is_full", [True, False])
def test_without_a_place_to_keep_it_an_engine_runs_all_the_same(
    *,
    source: ModelSource,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_full: bool,
) -> None:
    """Where the cache cannot be written or is full, one line says why."""
    cache_dir = tmp_path / "cache"
    if is_full:

        def write(
            source: ModelSource, options: BuildOptions, to: Path, *_: Any
        ) -> None:
            if to.parent == cache_dir:
                (to / WEIGHTS_NAME).symlink_to("/dev/full")
            build_engine_directory(source, options, to)

        monkeypatch.setattr(engine_build, "build_engine_directory", write)
    else:
        cache_dir.write_text("no directory")
    with capture_logs() as events:
        engine = find_or_build(source, ExecutorConfig(cache_dir=cache_dir), INT8)
    assert engine.quantization == "int8"
    assert not engine.directory.exists()
    (line,) = [event for event in events if event["event"] == "cpu.engine_not_kept"]
    assert line["log_level"] == "warning"
    assert line["cache_dir"] == str(cache_dir)
    assert ("No space left" if is_full else "File exists") in line["why"]


def test_without_any_place_to_build_the_places_are_named(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the variable that moves the last one."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"built in .*/file \(TMPDIR\): .*file"):
        find_or_build(source, ExecutorConfig(cache_dir=tmp_path / "file"), INT8)


@pytest.fixture
def built(source: ModelSource, tmp_path: Path) -> ModelSource:
    """An int8 engine directory, as a model."""
    folder = tmp_path / "built"
    folder.mkdir()
    build_engine_directory(source, INT8, folder)
    return ModelSource("built", folder, CheckpointFormat.COMPILED)


@pytest.mark.parametrize(
    "options",
    [BuildOptions(), INT8, BuildOptions(quantization="int8", dtype="float32")],
)
def test_an_engine_directory_is_used_as_it_is(
    built: ModelSource, config: ExecutorConfig, options: BuildOptions
) -> None:
    """Nothing is built or kept for it."""
    engine = find_or_build(built, config, options)
    assert (engine.directory, engine.quantization) == (built.path, "int8")
    assert config.cache_dir is not None
    assert not config.cache_dir.exists()


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (BuildOptions(quantization="int4"), "int4"),
        (BuildOptions(dtype="float32"), "fp32"),
    ],
)
def test_an_engine_directory_of_other_weights_is_refused(
    built: ModelSource, config: ExecutorConfig, options: BuildOptions, asked: str
) -> None:
    """What it has, what was asked for, and the command that builds that."""
    with pytest.raises(
        ConfigError, match=f"quantization=int8, asked for is {asked};.*--quantization"
    ):
        find_or_build(built, config, options)


@pytest.mark.parametrize(
    ("asked", "given"),
    [("auto", "int8"), ("bfloat16", "bfloat16"), ("float32", "float32")],
)
def test_the_cache_of_an_engine_directory_is_as_asked_for(
    built: ModelSource, config: ExecutorConfig, asked: str, given: str
) -> None:
    """No weight depends on it; without a wish it is as it was built."""
    options = BuildOptions(kv_cache_dtype=asked)
    assert find_or_build(built, config, options).kv_cache_dtype == given


def test_a_damaged_engine_directory_is_not_replaced(
    built: ModelSource, config: ExecutorConfig
) -> None:
    """It is the user's: what it was built from may be gone."""
    manifest = built.path / MANIFEST_NAME
    manifest.write_text(json.dumps({"engine_version": 0}))
    with pytest.raises(
        CheckpointError, match=f"engine_version 0, this is {ENGINE_VERSION}"
    ):
        find_or_build(built, config, INT8)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"quantization": "int3"}, "quantization is 'int3', must be auto or one of"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype is 'fp8', must be auto or one of"),
    ],
)
def test_options_without_a_kernel_are_refused(
    options: dict[str, str], told: str
) -> None:
    """By name and value, with those there are."""
    with pytest.raises(ConfigError, match=told):
        BuildOptions(**options)
