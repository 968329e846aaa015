"""Library chatter: silent unless asked for, and never on stdout."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hybrid.cli_stand import write_tiny_model
from tests.source_tree import ROOT

NOISY = """
import logging, sys, warnings
import hybrid.llm

class Noisy(hybrid.llm.LLM):
    def __init__(self, **keywords):
        warnings.warn("a warning", FutureWarning)
        logging.getLogger("library").warning("a record")
        logging.getLogger("library").error("an error")
        super().__init__(**keywords)

hybrid.LLM = Noisy
from hybrid.cli import main
main()
"""
"""The command over a library that says more than it was asked."""


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The words after ``hybrid`` that run a tiny model on the null executor."""
    pytest.importorskip("tokenizers")
    model = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
    return ["generate", "p", "--executor", "null", "-m", str(model), "--json"]


def run_noisy(
    command: list[str], *python_options: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, *python_options, "-c", NOISY, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_only_errors_come_through_unasked(command: list[str]) -> None:
    """Warnings and records below error are kept from the terminal."""
    result = run_noisy(command)
    assert result.returncode == 0
    assert result.stderr == "an error\n"


def test_verbose_lets_libraries_speak(command: list[str]) -> None:
    """-v shows both; stdout is still one JSON object and nothing else."""
    result = run_noisy([*command, "-v"])
    assert "FutureWarning: a warning" in result.stderr
    assert "a record\n" in result.stderr
    assert json.loads(result.stdout)["prompt"] == "p"


def test_who_gave_python_a_warning_option_has_asked(command: list[str]) -> None:
    """Python's -W and PYTHONWARNINGS work as they always do."""
    result = run_noisy(command, "-W", "default")
    assert "FutureWarning: a warning" in result.stderr


@pytest.mark.parametrize("level", ["-v", "-vv"])
def test_events_stay_off_stdout(command: list[str], level: str, tmp_path: Path) -> None:
    """At any level stdout is the object alone, into a file as into a pipe."""
    result = run_noisy([*command, level])
    assert json.loads(result.stdout)["model"] == command[5]
    assert "engine.started" in result.stderr
    with (tmp_path / "out").open("w+b") as out:
        subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", NOISY, *command, level],
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        out.seek(0)
        assert json.loads(out.read())["model"] == command[5]
