"""Which engines are kept: one for each quantization of a model, none outdated."""

import json
from pathlib import Path

import gguf
import pytest

from hybrid.backends.checkpoint.gguf_conversion import convert_gguf
from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.cpu import engine_build, engine_cache
from hybrid.backends.cpu.abi import ABI_VERSION
from hybrid.backends.cpu.build_options import BuildOptions
from hybrid.backends.cpu.engine_cache import find_or_build
from hybrid.backends.cpu.engine_directory import ENGINE_VERSION, MANIFEST_NAME
from hybrid.backends.interface import ExecutorConfig
from tests.backends.tiny_checkpoints import gguf_tensors, make_model, write_gguf

INT8 = BuildOptions(quantization="int8")


@pytest.fixture
def source(llama: Path) -> ModelSource:
    """The tiny Llama."""
    return ModelSource("tiny", llama, CheckpointFormat.HF_DIRECTORY)


@pytest.fixture
def config(tmp_path: Path) -> ExecutorConfig:
    """Keeps engines in a folder that is not there yet."""
    return ExecutorConfig(cache_dir=tmp_path / "kept")


def _kept(config: ExecutorConfig) -> set[str]:
    assert config.cache_dir is not None
    return {path.name for path in config.cache_dir.iterdir()}


def _four_bits(folder: Path) -> ModelSource:
    """The tiny Llama, converted from a GGUF of 4-bit blocks."""
    model, kind = make_model("llama"), gguf.GGMLQuantizationType.Q4_0
    raw = {
        name: (gguf.quantize(matrix, kind), kind)
        for name, matrix in gguf_tensors(model).items()
        if matrix.ndim > 1
    }
    written = write_gguf(folder / "tiny.gguf", model, raw=raw)
    return convert_gguf(written, dtype="bfloat16", cache_dir=folder / "converted")


def test_a_choice_that_a_model_made_is_kept_under_its_name(
    tmp_path: Path, config: ExecutorConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found under both, without a look into the file; another is not taken."""
    four_bits = _four_bits(tmp_path)
    find_or_build(four_bits, config, INT8)
    chosen = find_or_build(four_bits, config, BuildOptions())
    assert chosen.quantization == "int4"
    assert len(_kept(config)) == 2
    monkeypatch.setattr(engine_build, "_open", None)
    for options in (BuildOptions(), BuildOptions(quantization="int4")):
        assert find_or_build(four_bits, config, options).directory == chosen.directory


def test_an_engine_of_other_files_is_built_again(
    source: ModelSource, config: ExecutorConfig
) -> None:
    """Whoever put it there: its manifest says what it was built from."""
    manifest = find_or_build(source, config, INT8).directory / MANIFEST_NAME
    content = manifest.read_text()
    changed = json.loads(content) | {"source_fingerprint": "another"}
    manifest.write_text(json.dumps(changed))
    find_or_build(source, config, INT8)
    assert manifest.read_text() == content


def test_what_older_packages_built_goes_when_a_newer_one_builds(
    source: ModelSource, config: ExecutorConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of this model alone, whatever its quantization; what a newer one built stays."""
    assert config.cache_dir is not None
    for name, version, path in (
        ("old", 1, source.path),
        ("new", ENGINE_VERSION + 1, source.path),
        ("other", 1, config.cache_dir),
        (".converting-old", 1, source.path),
    ):
        (folder := config.cache_dir / name).mkdir(parents=True)
        manifest = {
            "engine_version": version,
            "kernel_version": ABI_VERSION,
            "source": str(path),
            "quantization": "int4",
        }
        (folder / MANIFEST_NAME).write_text(json.dumps(manifest))
    (config.cache_dir / "incomplete").mkdir()
    one = find_or_build(source, config, INT8).directory.name
    other = find_or_build(source, config, BuildOptions(quantization="bf16"))
    wanted = {".converting-old", "incomplete", "new", "other", one}
    assert set(_kept(config)) == wanted | {other.directory.name}
    monkeypatch.setattr(engine_cache, "CONVERTER_VERSION", 99)
    newest = find_or_build(source, config, INT8).directory.name
    assert set(_kept(config)) == {".converting-old", "incomplete", "new", "other"} | {
        newest
    }
