"""A directory that is no longer what was built is refused, and what to do is said."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.cpu.abi import ABI_VERSION
from hybrid.backends.cpu.build_options import BuildOptions
from hybrid.backends.cpu.engine_build import build_engine_directory
from hybrid.backends.cpu.engine_directory import (
    ENGINE_VERSION,
    MANIFEST_NAME,
    WEIGHTS_NAME,
    BuiltEngine,
    read_engine,
)
from hybrid.scheduler.errors import CheckpointError
from tests.backends.model_directory import change_config


@pytest.fixture
def engine(llama: Path, tmp_path: Path) -> BuiltEngine:
    """A fresh int8 engine of the tiny Llama."""
    source = ModelSource("tiny", llama, CheckpointFormat.HF_DIRECTORY)
    build_engine_directory(source, BuildOptions(quantization="int8"), tmp_path)
    return read_engine(tmp_path)


def _change_manifest(folder: Path, change: Callable[[Any], object]) -> None:
    path = folder / MANIFEST_NAME
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def _refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        read_engine(folder)
    return str(error.value)


def test_reading_gives_what_was_built(engine: BuiltEngine) -> None:
    """Settled options, and bytes that add up to the file's."""
    assert (engine.quantization, engine.kv_cache_dtype) == ("int8", "int8")
    file_bytes = (engine.directory / WEIGHTS_NAME).stat().st_size
    # In front of them stands the header.
    assert 0 < file_bytes - engine.memory.weights_bytes < 10_000
    shape = engine.shape
    num_heads = 2 * shape.num_layers * shape.num_kv_heads
    assert engine.kv_bytes_per_token == num_heads * (shape.head_dim + 4)


@pytest.mark.parametrize(
    ("dtype", "head_bytes"), [("float32", 64), ("bfloat16", 32), ("int8", 16 + 4)]
)
def test_a_tokens_cache_counts_the_scales_of_int8(
    dtype: str, head_bytes: int, llama: Path, tmp_path: Path
) -> None:
    """One float32 for each head of K and of V beside its sixteen numbers."""
    source = ModelSource("tiny", llama, CheckpointFormat.HF_DIRECTORY)
    options = BuildOptions(kv_cache_dtype=dtype)
    build_engine_directory(source, options, tmp_path)
    assert read_engine(tmp_path).kv_bytes_per_token == 2 * 3 * 2 * head_bytes


@pytest.mark.parametrize(
    ("version", "own"),
    [("engine_version", ENGINE_VERSION), ("kernel_version", ABI_VERSION)],
)
@pytest.mark.parametrize("found", [99, None])
def test_another_version_is_refused(
    engine: BuiltEngine, version: str, own: int, found: int | None
) -> None:
    """Both numbers are named, and the command that builds it again."""
    _change_manifest(engine.directory, lambda m: m.update({version: found}))
    told = _refusal(engine.directory)
    assert f"built with {version} {found}, this is {own}" in told
    assert "hybrid build MODEL -o DIR" in told


def test_another_models_configuration_is_refused(engine: BuiltEngine) -> None:
    """The tokenizer and the engine would be of two models."""
    change_config(engine.directory, vocab_size=12)
    told = _refusal(engine.directory)
    assert "config.json is not the one that the engine was built from" in told
    (engine.directory / "config.json").unlink()
    assert "config.json cannot be read: No such file" in _refusal(engine.directory)


@pytest.mark.parametrize("name", [MANIFEST_NAME, WEIGHTS_NAME])
def test_a_missing_file_is_named(engine: BuiltEngine, name: str) -> None:
    """Each of the two that make it an engine."""
    (engine.directory / name).unlink()
    assert name in _refusal(engine.directory)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_truncated_weights_are_refused(engine: BuiltEngine, kept: int) -> None:
    """In the header or in the last array: nothing is mapped past the end."""
    path = engine.directory / WEIGHTS_NAME
    content = path.read_bytes()
    path.write_bytes(content[:kept])
    told = _refusal(engine.directory)
    assert WEIGHTS_NAME in told
    assert "truncated" in told


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda m: m.pop("shape"), "KeyError.*shape"),
        (lambda m: m["shape"].pop("num_heads"), "TypeError.*num_heads"),
        (lambda m: m["weights"][0].update(rows=9), "embedding has .* bytes, needs"),
        (lambda m: m["weights"][1].update(form="FP3"), "KeyError.*FP3"),
        (lambda m: m["weights"][2].update(name="x"), "KeyError.*x.data"),
        (lambda m: m["weights"].pop(), "weight none, the shape has head"),
        (lambda m: m["weights"][2].update(columns=40), r"40\], .* has layers"),
        (lambda m: m["ops"][0].pop(), "ops are not those"),
        (lambda m: m["ops"][1].__setitem__(8, 64), "ops are not those"),
        (lambda m: m["ops"][-1].__setitem__(3, 1 << 33), "ops are not those"),
        (lambda m: m["ops"].pop(), "ops are not those"),
        (lambda m: m.update(arena_bytes=64), "ops are not those"),
        (lambda m: m.update(unit_tokens=0), "unit_tokens is 0, must be 1 to"),
        (lambda m: m.update(unit_tokens=1 << 32), "unit_tokens is 4294967296"),
        (lambda m: m.update(unit_tokens=True), "unit_tokens is True"),
        (lambda m: m.update(unit_tokens=65), "ops are not those"),
        (lambda m: m.update(quantization="int3"), "'int3' is none of int8"),
        (lambda m: m.update(kv_cache_dtype=2), "2 is none of float32"),
        (lambda m: m["shape"].update(num_layers=4), "3 windows, num_layers is 4"),
        (lambda m: m["shape"]["windows"].append(None), "4 windows, num_layers is 3"),
        (lambda m: m["shape"].update(windows=[0, None, None]), "windows are"),
        (lambda m: m["shape"].update(windows=[1 << 31] * 3), "windows are"),
        (lambda m: m["shape"].update(head_dim=32), "inverse_freq.*, head_dim is 32"),
        (lambda m: m["shape"]["inverse_frequencies"].pop(), "7 inverse_frequencies"),
        (
            lambda m: m["shape"].update(inverse_frequencies=[float("nan")] * 8),
            "inverse_frequencies are no numbers",
        ),
        (lambda m: m["shape"].update(num_kv_heads=3), "no multiple of num_kv_heads"),
        (lambda m: m["shape"].update(num_heads=(1 << 32) + 4), "num_heads is 4294"),
        (lambda m: m["shape"].update(hidden_size=0), "hidden_size is 0"),
        (lambda m: m["shape"].update(vocab_size=320.0), "vocab_size is 320.0"),
        (lambda m: m["shape"].update(rope_scale=float("inf")), "rope_scale is inf"),
        (lambda m: m["shape"].update(has_mlp_bias=True), r"\+ bias"),
        (lambda m: m["shape"].update(has_head_norms=True), "norms are not those"),
        (lambda m: m["vectors"].pop("model.norm.weight"), "norms are not those"),
        (lambda m: m.update(vectors=[1]), "AttributeError"),
        (lambda m: m["vectors"].update({"model.norm.weight": 7}), "needs 7"),
    ],
)
def test_a_manifest_that_does_not_fit_its_weights_is_refused(
    engine: BuiltEngine, change: Callable[[Any], object], told: str
) -> None:
    """Whatever is wrong in it, the message says so and how to get a good one."""
    _change_manifest(engine.directory, change)
    with pytest.raises(CheckpointError, match=f"do not fit: .*{told}.*hybrid build"):
        read_engine(engine.directory)


def test_scales_of_another_matrix_are_refused(engine: BuiltEngine) -> None:
    """They are as many as the groups of their own."""
    from safetensors.numpy import load_file, save_file  # noqa: PLC0415 - tests alone

    path = engine.directory / WEIGHTS_NAME
    arrays = load_file(path)
    arrays["embedding.scales"] = arrays["embedding.scales"][:-32].copy()
    path.unlink()  # mapped by the engine
    save_file(arrays, path)
    told = _refusal(engine.directory)
    assert re.search(r"do not fit: .*embedding has \d+ scales, needs \d+", told)


def test_a_manifest_that_is_no_json_is_refused(engine: BuiltEngine) -> None:
    """As when a disk was full."""
    path = engine.directory / MANIFEST_NAME
    path.write_text(path.read_text()[:-20])
    assert f"{MANIFEST_NAME} is no JSON file" in _refusal(engine.directory)
