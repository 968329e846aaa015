"""From what a user calls a model to its files."""

from pathlib import Path
from typing import Any

import pytest

from hybrid.backends.checkpoint.model_source import CheckpointFormat
from hybrid.models import resolve_model
from hybrid.scheduler.errors import InvalidRequest, ModelNotFound

HF = CheckpointFormat.HF_DIRECTORY
GGUF = CheckpointFormat.GGUF


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory and an empty cache."""
    monkeypatch.setenv("HYBRID_CACHE", str(tmp_path / "cache"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def fill(folder: Path, *names: str) -> Path:
    """A directory with empty files, GGUF ones with their first bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"GGUF" if name.endswith(".gguf") else b"{}")
    return folder


@pytest.mark.parametrize(
    ("files", "name", "path", "kind"),
    [
        (("config.json", "model.safetensors"), "./m", "m", HF),
        (("config.json",), "m", "m", HF),
        (("config.json", "a.safetensors", "b.gguf"), "m", "m", HF),
        (("config.json", "a.gguf"), "m", "m/a.gguf", GGUF),
        (("a.gguf", "notes.txt"), "m", "m/a.gguf", GGUF),
        (("a.gguf",), "m/a.gguf", "m/a.gguf", GGUF),
        (("weights.gguf", "other.gguf"), "m/other.gguf", "m/other.gguf", GGUF),
    ],
)
def test_paths_are_recognised_by_what_is_there(
    folder: Path, files: tuple[str, ...], name: str, path: str, kind: CheckpointFormat
) -> None:
    """Directories and files give their path and format, whatever they are called."""
    fill(folder / "m", *files)
    source = resolve_model(name)
    assert (source.name, source.format) == (name, kind)
    assert source.path.resolve() == folder / path


def test_a_gguf_file_may_have_any_name(folder: Path) -> None:
    """A file that starts as GGUF is one, as caches without suffixes have them."""
    (folder / "blob").write_bytes(b"GGUF....")
    assert resolve_model("blob").format is GGUF


def test_a_directory_wins_over_a_hub_id(folder: Path) -> None:
    """What exists here is never looked for elsewhere."""
    fill(folder / "owner" / "name", "config.json")
    assert resolve_model("owner/name").path.resolve() == folder / "owner" / "name"


def test_home_is_expanded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leading ~ is the home folder."""
    monkeypatch.setenv("HOME", str(folder))
    fill(folder / "m", "config.json")
    assert resolve_model("~/m").path == folder / "m"


def test_a_path_object_is_a_path(folder: Path) -> None:
    """Programs may pass pathlib's paths."""
    assert resolve_model(fill(folder / "m", "config.json")).path == folder / "m"


def test_a_known_name_is_pulled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A known name is fetched with the caller's progress, in whatever case."""
    calls: list[tuple[str, Any]] = []

    def fake(name: str, *, progress: Any = None) -> Path:
        calls.append((name, progress))
        return folder / "file.gguf"

    monkeypatch.setattr("hybrid.models.resolve.pull", fake)
    source = resolve_model("SmolLM2-135M", progress=print)
    assert calls == [("smollm2-135m", print)]
    assert (source.name, source.format) == ("smollm2-135m", GGUF)


def test_a_dotted_path_reaches_past_a_known_name(folder: Path) -> None:
    """./name is the directory although the name is known."""
    fill(folder / "smollm2-135m", "config.json")
    assert resolve_model("./smollm2-135m").format is HF


@pytest.mark.parametrize(
    "name", ["smolm2-135m", "./smollm2", "nothing", "/no/such/dir/x"]
)
def test_what_is_nowhere_lists_what_was_tried(name: str) -> None:
    """The error has the name, the known names, the path and the form of an id."""
    with pytest.raises(ModelNotFound) as caught:
        resolve_model(name)
    text = str(caught.value)
    assert repr(name) in text
    for tried in ("smollm2-135m", "no such file or directory", "owner/name"):
        assert tried in text
    assert "\n" not in text


def test_a_misspelt_name_gets_a_suggestion() -> None:
    """The nearest known name stands at the end."""
    with pytest.raises(ModelNotFound, match=r"did you mean 'smollm2-135m'\?$"):
        resolve_model("smolm2-135")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (
            ("a.gguf", "b.gguf"),
            r"holds 2 GGUF files, name one of them: a\.gguf, b\.gguf",
        ),
        (("notes.txt",), r"without config\.json and without GGUF"),
        ((), r"without config\.json and without GGUF"),
    ],
)
def test_a_directory_that_is_no_model_says_why(
    folder: Path, files: tuple[str, ...], reason: str
) -> None:
    """None or several candidates are told apart."""
    fill(folder / "m", *files)
    with pytest.raises(ModelNotFound, match=reason):
        resolve_model("m")


def test_another_file_is_refused(folder: Path) -> None:
    """A file that is no GGUF is no model."""
    (folder / "x.bin").write_bytes(b"PK\x03\x04")
    with pytest.raises(ModelNotFound, match="is a file, but not GGUF"):
        resolve_model("x.bin")


@pytest.mark.parametrize("name", ["", " ", "\t"])
def test_an_empty_name_is_a_bad_request(name: str) -> None:
    """No name is the caller's fault, not a missing model."""
    with pytest.raises(InvalidRequest, match="model is"):
        resolve_model(name)
