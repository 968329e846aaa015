"""``hybrid models``, ``pull``, ``executors``, ``--version`` and ``--help``."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hybrid
from hybrid.backends.interface import Implementation
from hybrid.backends.null.executor import NullExecutor
from hybrid.cli import run
from hybrid.cli.app import app
from hybrid.executors import ExecutorEntry
from hybrid.models import KNOWN_MODELS

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("HYBRID_CACHE", str(tmp_path))
    return tmp_path


def test_version_is_the_packages(capsys: Captured) -> None:
    """--version prints the name and the version, on stdout."""
    assert run(["--version"]) == 0
    assert capsys.readouterr() == (f"hybrid {hybrid.__version__}\n", "")


@pytest.mark.parametrize(
    "command", ["generate", "chat", "pull", "models", "executors", "plugins", ""]
)
def test_help_explains_every_command(capsys: Captured, command: str) -> None:
    """--help is on stdout and succeeds."""
    assert run([*filter(None, [command]), "--help"]) == 0
    out, err = capsys.readouterr()
    assert "Usage: hybrid" in out
    assert err == ""


def test_nothing_given_shows_the_help(capsys: Captured) -> None:
    """The bare command explains itself; for a shell it is wrong usage."""
    assert run([]) == 2
    out, err = capsys.readouterr()
    assert "generate" in out
    assert err == ""


def test_an_unknown_command_is_one_line(capsys: Captured) -> None:
    """The command is named, exit code 2."""
    assert run(["generat"]) == 2
    err = capsys.readouterr().err
    assert "generat" in err
    assert err.count("\n") == 1


def test_the_app_runs_under_typers_own_runner() -> None:
    """Other programs may embed the commands."""
    result = CliRunner().invoke(app, ["models", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)[0]["name"] == KNOWN_MODELS[0].name


def test_models_lists_what_is_known_and_what_is_here(
    capsys: Captured, cache: Path
) -> None:
    """A fetched model has its path, another has none."""
    model = KNOWN_MODELS[0]
    assert run(["models", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["path"]) == (model.name, None)
    path = cache / "models" / model.name / model.file_name
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(model.size_bytes)
    assert run(["models", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["path"] == str(path)
    assert run(["models"]) == 0
    table = capsys.readouterr().out
    assert str(path) in table
    assert "Apache-2.0" in table


def test_pull_prints_the_path(
    capsys: Captured, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts can use what pull prints."""
    monkeypatch.setattr("hybrid.models.pull", lambda name, **_: cache / name)
    assert run(["pull", "tiny"]) == 0
    assert capsys.readouterr() == (f"{cache / 'tiny'}\n", "")


def test_pulling_an_unknown_name_lists_the_known(capsys: Captured) -> None:
    """The line has the names there are, exit code 1."""
    assert run(["pull", "nothing"]) == 1
    assert capsys.readouterr().err == (
        "error: no known model is called 'nothing'; known: smollm2-135m\n"
    )


def test_executors_say_what_they_can(capsys: Captured) -> None:
    """The null executor is always there, in the table and as JSON."""
    assert run(["executors", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["null"]["available"] is True
    assert rows["null"]["capabilities"]["devices"] == ["cpu"]
    assert 16 in rows["null"]["capabilities"]["block_sizes"]
    assert run(["executors"]) == 0
    (line,) = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.split()[:1] == ["null"]
    ]
    for word in ("yes", "cpu", "float32", "16", "layer_first", "block copy"):
        assert word in line


def test_an_executor_that_is_not_installed_says_why(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason stands where its abilities would."""
    entry = ExecutorEntry("far", "somewhere", "ours", reason="not installed: far")
    monkeypatch.setattr("hybrid.executors.list_executors", lambda *_, **__: (entry,))
    assert run(["executors"]) == 0
    assert "not installed: far" in capsys.readouterr().out
    assert run(["executors", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["reason"] == "not installed: far"


def test_executors_explain_how_each_would_compute(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way has a row: what it is, or why it is passed over."""
    fast = Implementation(name="fast", description="kernels", reason="no GPU here")
    slow = Implementation(name="slow", description="plain loops")
    capabilities = NullExecutor().capabilities()
    entries = (
        ExecutorEntry("two", "two ways", "ours", None, capabilities, (fast, slow)),
        ExecutorEntry("one", "one way", "ours", None, capabilities),
        ExecutorEntry("far", "elsewhere", "ours", reason="not installed: far"),
    )
    monkeypatch.setattr("hybrid.executors.list_executors", lambda *_, **__: entries)
    assert run(["executors", "--explain"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [
        ["two", "fast", "no", "no", "GPU", "here"],
        ["two", "slow", "yes", "plain", "loops"],
        ["one", "-", "yes", "one", "way"],
        ["far", "-", "no", "not", "installed:", "far"],
    ]
    assert run(["executors", "--explain", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    assert first["implementations"][0]["reason"] == "no GPU here"
