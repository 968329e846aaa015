"""Where weights lie while an engine runs."""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from structlog.testing import capture_logs

from hybrid.backends.cpu import weight_pages
from hybrid.backends.cpu.engine_directory import BuiltEngine
from hybrid.backends.cpu.weight_pages import place_weights
from hybrid.scheduler.errors import ConfigError
from hybrid.testing.models import write_tiny_model
from tests.backends.built_cpu_engine import build, hf_source

MADVISE = "always [madvise] never"


@pytest.fixture
def engine(tmp_path: Path) -> BuiltEngine:
    """An int8 engine with biases; its matrices have scales."""
    source = hf_source(write_tiny_model(tmp_path / "model", "qwen2"))
    return build(source, tmp_path / "engine", quantization="int8")


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's setting, which gives huge pages to those who ask."""
    file = tmp_path / "enabled"
    file.write_text(MADVISE, "ascii")
    monkeypatch.setattr(weight_pages, "_SETTING", file)
    return file


def _arrays(engine: BuiltEngine) -> Iterator[NDArray[Any]]:
    yield from engine.vectors
    for weight in engine.weights:
        for array in (weight.data, weight.scales, weight.bias):
            if array is not None:
                yield array


@pytest.mark.usefixtures("setting")
def test_all_that_the_kernels_read_is_copied(engine: BuiltEngine) -> None:
    """Byte by byte, aligned, read-only; nothing keeps the file mapped."""
    placed = place_weights(engine, "huge")
    assert not placed.is_mapped
    for copied, array in zip(_arrays(placed), _arrays(engine), strict=True):
        assert copied.dtype == array.dtype
        assert copied.tobytes() == array.tobytes()
        assert copied.ctypes.data % 64 == 0
        assert not np.shares_memory(copied, array)
        assert not copied.flags.writeable


@pytest.mark.parametrize(
    ("pages", "given", "is_mapped"),
    [
        ("auto", MADVISE, False),
        ("auto", "[always] madvise never", False),
        ("auto", "always madvise [never]", True),
        ("auto", None, True),
        ("huge", "always madvise [never]", False),
        ("mapped", "[always] madvise never", True),
    ],
)
def test_weights_are_copied_where_that_gives_huge_pages(
    engine: BuiltEngine, setting: Path, pages: str, given: str | None, is_mapped: bool
) -> None:
    """Unless it was said where they shall lie."""
    setting.unlink()
    if given is not None:
        setting.write_text(given, "ascii")
    assert place_weights(engine, pages).is_mapped == is_mapped


@pytest.mark.usefixtures("setting")
def test_weights_stay_mapped_where_memory_is_short(
    engine: BuiltEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of a file the system can take back."""
    size = sum(array.nbytes for array in _arrays(engine))
    monkeypatch.setattr(weight_pages, "free_host_memory_bytes", lambda: size * 3 // 2)
    assert place_weights(engine, "auto").is_mapped
    assert not place_weights(engine, "huge").is_mapped


@pytest.mark.usefixtures("setting")
def test_without_memory_auto_says_why_it_maps_and_huge_is_refused(
    engine: BuiltEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal names the bytes, and what does without."""

    def refuse(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with capture_logs() as events:
        assert place_weights(engine, "auto").is_mapped
    (line,) = events
    assert line["event"] == "cpu.weights_mapped"
    assert "Cannot allocate" in line["why"]
    with pytest.raises(ConfigError, match=r"[\d,]+ bytes of weights .*use mapped"):
        place_weights(engine, "huge")


@pytest.mark.usefixtures("setting")
def test_a_system_without_huge_pages_gives_small_ones(
    engine: BuiltEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for huge ones gets the weights all the same."""
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    assert not place_weights(engine, "huge").is_mapped
