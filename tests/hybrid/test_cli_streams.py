"""Standard streams that are closed or take nothing: one line, or no difference."""

import subprocess
import sys
from pathlib import Path

import pytest

from hybrid.cli.standard_streams import MAX_NOTE_CHARACTERS, note
from tests.hybrid.cli_stand import write_tiny_model
from tests.source_tree import ROOT

Captured = pytest.CaptureFixture[str]
MAIN = "from hybrid.cli import main; main()"


@pytest.fixture(scope="module")
def null(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that run a tiny model on the null executor."""
    pytest.importorskip("tokenizers")
    model = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
    return ["--executor", "null", "--model", str(model), "--max-tokens", "5"]


def python(
    redirection: str, code: str, *arguments: str
) -> subprocess.CompletedProcess[bytes]:
    """Run code as a shell would after a redirection such as ``>&-``."""
    shell = ["/bin/sh", "-c", f'exec "$0" "$@" {redirection}']
    return subprocess.run(  # noqa: S603 - our own interpreter
        [*shell, sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize("arguments", [["models"], ["--version"], ["chat"]])
def test_a_closed_stdout_is_one_line(arguments: list[str]) -> None:
    """There is nowhere to put an answer: said before anything is loaded."""
    result = python(">&-", MAIN, *arguments)
    assert result.stderr == b"error: standard output is closed\n"
    assert result.returncode == 1


def test_nothing_to_write_to_at_all_is_an_exit_code() -> None:
    """With all three streams closed the shell still learns of it."""
    assert python("<&- >&- 2>&-", MAIN, "models").returncode == 1


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize("verbose", [[], ["-v"]])
def test_a_stderr_that_takes_nothing_changes_nothing(
    null: list[str], redirection: str, verbose: list[str]
) -> None:
    """The answer and the exit code are those of any other run."""
    if "full" in redirection and not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    command = ["generate", "Hello", *null]
    result = python(redirection, MAIN, *command, *verbose)
    assert result.returncode == 0
    assert result.stdout == python("", MAIN, *command).stdout
    assert result.stdout.endswith(b"\n")


@pytest.mark.parametrize("command", [["generate", "-"], ["generate", "-f-"], ["chat"]])
def test_a_closed_stdin_is_one_line(command: list[str]) -> None:
    """It is named, before a model is looked for."""
    result = python("<&-", MAIN, *command, "-m", "no-such-model")
    assert result.stderr == b"error: standard input is closed\n"
    assert (result.returncode, result.stdout) == (1, b"")


def test_a_closed_stdin_that_nobody_reads_changes_nothing(null: list[str]) -> None:
    """A prompt that is an argument needs no standard input."""
    result = python("<&-", MAIN, "generate", "Hello", *null)
    assert (result.returncode, result.stderr) == (0, b"")


def test_no_file_gets_the_number_of_a_closed_stream() -> None:
    """Else what a C library writes to stderr would land in it."""
    code = (
        "import os; from hybrid.cli.standard_streams import open_missing_streams; "
        "open_missing_streams(); print(os.open(os.devnull, os.O_RDONLY))"
    )
    for redirection in ("<&-", "2>&-", "<&- 2>&-"):
        assert int(python(redirection, code).stdout) > 2


def test_a_note_is_short_whatever_it_tells_of(capsys: Captured) -> None:
    """A long value is cut in the middle: the beginning and the end are kept."""
    note("error: model " + "x" * 100_000 + " is not here")
    err = capsys.readouterr().err
    assert len(err) < MAX_NOTE_CHARACTERS
    assert err.startswith("error: model xxx")
    assert err.endswith("xxx is not here\n")


def test_a_note_of_ordinary_length_is_whole(capsys: Captured) -> None:
    """Nothing is cut up to the limit."""
    line = "y" * MAX_NOTE_CHARACTERS
    note(line)
    assert capsys.readouterr().err == f"{line}\n"
