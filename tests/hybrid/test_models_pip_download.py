"""Fetching one wheel by the real pip, from a folder instead of an index."""

import hashlib
import os
import sys
import zipfile
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from hybrid.models import pip_download
from hybrid.models.pip_download import download_wheel
from hybrid.scheduler.errors import CheckpointError

pytestmark = pytest.mark.skipif(
    PathFinder.find_spec("pip") is None, reason="this Python has no pip"
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one wheel, which is all that pip looks at."""
    folder = tmp_path / "index"
    folder.mkdir()
    info = "hybrid_test_tiny_model-1.0.dist-info"
    metadata = (
        "Metadata-Version: 2.1\nName: hybrid-test-tiny-model\nVersion: 1.0\n"
        "Requires-Dist: a-distribution-that-does-not-exist\n"
    )
    wheel = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    name = "hybrid_test_tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", b"GGUF")
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", wheel)
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """An empty folder to fetch into."""
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def test_a_wheel_is_fetched_without_its_dependencies(index: Path, target: Path) -> None:
    """Pip puts the very wheel there, and nothing that it depends on."""
    counts: list[int] = []
    wheel = download_wheel("hybrid-test-tiny-model==1.0", target, counts.append)
    (source,) = index.iterdir()
    assert wheel.name == source.name
    digests = {hashlib.sha256(path.read_bytes()).digest() for path in (wheel, source)}
    assert len(digests) == 1
    assert all(count <= source.stat().st_size for count in counts)


@pytest.mark.usefixtures("index")
def test_what_no_index_has_is_one_clear_line(target: Path) -> None:
    """Neither a network nor an index with it: the line says so and names it."""
    with pytest.raises(
        CheckpointError, match=r"cannot fetch absent==1\.0: pip found no"
    ):
        download_wheel("absent==1.0", target)


@pytest.mark.usefixtures("index")
def test_an_imported_distutils_brings_no_warning(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compilers of models import it; setuptools' finder would warn of that."""
    monkeypatch.setitem(sys.modules, "distutils", ModuleType("distutils"))
    with pytest.raises(CheckpointError, match="pip found no"):
        download_wheel("absent==1.0", target)


def test_another_failure_of_pip_is_told_in_its_words(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pip's own last error line is in ours, with its status."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_SUCH_OPTION", "1")
    with pytest.raises(CheckpointError, match=r"pip ended with status \d: "):
        download_wheel("not a requirement", target)


def test_a_python_without_pip_is_named(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without pip the line says what to do."""
    nowhere = SimpleNamespace(find_spec=lambda _: None)
    monkeypatch.setattr(pip_download, "PathFinder", nowhere)
    with pytest.raises(CheckpointError, match="this Python has no pip; run"):
        download_wheel("hybrid-test-tiny-model==1.0", target)
