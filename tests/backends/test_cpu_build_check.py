"""A fresh engine is held against transformers; one that differs is neither kept."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.cpu import build_check, implementations
from hybrid.backends.cpu.build_check import check_built
from hybrid.backends.cpu.build_options import BuildOptions
from hybrid.backends.cpu.engine_build import build_engine_directory
from hybrid.backends.cpu.engine_directory import BuiltEngine, read_engine
from hybrid.backends.cpu.native_library import load_library
from hybrid.scheduler import CheckpointError, UnsupportedFeature
from hybrid.testing import write_tiny_model
from tests.backends.cpu_stand import load_cpu
from tests.backends.model_directory import change_weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with norms of queries and keys; nobody writes there."""
    return write_tiny_model(tmp_path_factory.mktemp("qwen3"), "qwen3")


def _build(folder: Path, target: Path, quantization: str = "fp32") -> BuiltEngine:
    target.mkdir()
    source = ModelSource("tiny", folder, CheckpointFormat.HF_DIRECTORY)
    build_engine_directory(source, BuildOptions(quantization=quantization), target)
    return read_engine(target)


def _head_of_another(engine: BuiltEngine) -> BuiltEngine:
    """Its last matrix in place of the first: the weights are mixed up."""
    weights = list(engine.weights)
    weights[1], weights[5] = weights[5], weights[1]
    return replace(engine, weights=tuple(weights))


def _with_shape(**changes: Any) -> Any:
    return lambda engine: replace(engine, shape=replace(engine.shape, **changes))


MISTAKES = {
    "epsilon": _with_shape(norm_epsilon=0.3),
    "scale": _with_shape(attention_scale=0.3),
    "rotation": _with_shape(inverse_frequencies=(1.0,) * 8),
    "window": _with_shape(windows=(2, 2, 2)),
    "matrices": _head_of_another,
}


@pytest.mark.parametrize("quantization", build_check.MAX_RELATIVE_ERRORS)
def test_rounding_is_accepted(folder: Path, tmp_path: Path, quantization: str) -> None:
    """Each quantization within its own limit."""
    engine = _build(folder, tmp_path / "engine", quantization)
    check_built(load_library(), engine, folder)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_another_model_is_not_accepted(
    folder: Path, tmp_path: Path, mistake: str
) -> None:
    """Whatever the plan gets wrong shows in the logits; the error says how far."""
    wrong = MISTAKES[mistake](_build(folder, tmp_path / "engine"))
    with pytest.raises(UnsupportedFeature, match=r"relative error .*, at most 0.001"):
        check_built(load_library(), wrong, folder)


def test_a_weight_that_is_no_number_is_named(tmp_path: Path) -> None:
    """The file is at fault; no other executor is tried."""
    folder = write_tiny_model(tmp_path, "llama")
    change_weights(folder, model__norm__weight=torch.full((64,), float("nan")))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
        load_cpu(folder, implementation="auto")


def test_what_is_not_accepted_is_not_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch runs it, one line says why, and the next start finds no engine."""
    monkeypatch.setitem(build_check.MAX_RELATIVE_ERRORS, "int8", 0.0)
    with capture_logs() as events:
        loaded = load_cpu(folder, cache_dir=tmp_path, implementation="auto")
    with closing(loaded.executor):
        assert not list(tmp_path.glob("*int8*"))
        assert not list(tmp_path.glob("*auto*"))
    (event,) = [one for one in events if one["event"] == "cpu.fallback"]
    assert event["implementation"] == "torch"
    assert "differs from transformers'" in event["reasons"]["native"]


def test_a_kept_engine_is_not_checked_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was accepted once, and a start must not wait for transformers."""
    load_cpu(folder, cache_dir=tmp_path).executor.close()

    def refuse(*_: object) -> None:
        raise AssertionError("checked again")

    monkeypatch.setattr(implementations, "check_built", refuse)
    load_cpu(folder, cache_dir=tmp_path).executor.close()
