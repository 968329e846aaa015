"""The command line over a real engine."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hybrid import ConfigError
from hybrid.cli import run
from hybrid.cli.engine_options import parse_executor_options, resume_collection
from hybrid.cli.progress import show_progress
from tests.hybrid.cli_stand import write_tiny_model
from tests.source_tree import ROOT

Captured = pytest.CaptureFixture[str]
COMMAND = (sys.executable, "-c", "from hybrid.cli import main; main()")


@pytest.fixture(scope="module")
def null(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that run a tiny model on the null executor."""
    pytest.importorskip("tokenizers")
    model = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
    return ["--executor", "null", "--model", str(model)]


def test_stream_and_json_say_the_same(capsys: Captured, null: list[str]) -> None:
    """The pieces that were streamed join to the final text."""
    options = [*null, "Hello", "--max-tokens", "12"]
    assert run(["generate", *options]) == 0
    streamed = capsys.readouterr().out
    assert run(["generate", *options, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert streamed == result["outputs"][0]["text"] + "\n"
    assert result["usage"]["completion_tokens"] == 12
    assert result["outputs"][0]["finish_reason"] == "length"


def test_a_message_goes_through_the_template(capsys: Captured, null: list[str]) -> None:
    """--chat is answered by the model's own template."""
    options = [*null, "--max-tokens", "4", "--json"]
    assert run(["generate", *options, "--chat", "Hi"]) == 0
    result = json.loads(capsys.readouterr().out)
    expected = "<s>user: Hi\n<s>assistant: "
    assert result["usage"]["prompt_tokens"] == len(expected) - 2 * len("s>")


def test_the_same_seed_draws_the_same_answers(
    capsys: Captured, null: list[str]
) -> None:
    """Two runs with one seed agree; the samples of one run differ."""
    options = [*null, "p", "--n", "3", "--seed", "5", "-t", "1", "--max-tokens", "9"]
    assert run(["generate", *options]) == 0
    first = capsys.readouterr().out
    assert run(["generate", *options]) == 0
    assert capsys.readouterr().out == first
    answers = [part.partition("\n")[2] for part in first.split("--- ")[1:]]
    assert len(set(answers)) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "prompt"),
        (["x" * 300], "300"),
        (["p", "--max-model-len", "100000"], "100000"),
        (["p", "--block-size", "7"], "block_size is 7"),
        (["p", "--executor", "nul"], "nul"),
        (["p", "--dtype", "int3"], "int3"),
        (["p", "--device", "tpu"], "tpu"),
        (["p", "--num-kv-blocks", "0"], "num_kv_blocks"),
        (["p", "--kv-cache-memory", "much"], "much"),
        (["p", "--scheduling-policy", "lifo"], "lifo"),
    ],
)
def test_what_the_engine_refuses_is_one_line(
    capsys: Captured, null: list[str], arguments: list[str], message: str
) -> None:
    """Empty, too long or impossible: one line that names it, exit code 1."""
    assert run(["generate", *null, *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_an_unknown_model_is_one_line(capsys: Captured) -> None:
    """The nearest known name is offered."""
    assert run(["generate", "--executor", "null", "-m", "smolm2-135m", "p"]) == 1
    err = capsys.readouterr().err
    assert "did you mean 'smollm2-135m'?" in err
    assert err.count("\n") == 1


def test_the_console_script_streams_and_leaves_cleanly(null: list[str]) -> None:
    """As a process: the answer on stdout, nothing on stderr, exit code 0."""
    result = subprocess.run(  # noqa: S603 - our own interpreter
        [*COMMAND, "generate", *null, "Hello", "--max-tokens", "5"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.endswith(b"\n")
    assert len(result.stdout) > 1


def test_a_piped_conversation_runs_as_a_process(null: list[str]) -> None:
    """Two lines in, two answers out."""
    result = subprocess.run(  # noqa: S603 - our own interpreter
        [*COMMAND, "chat", *null, "--max-tokens", "3", "--stop", "\n"],
        cwd=ROOT,
        input="one\ntwo\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("\n") == 2


def test_the_collector_runs_again_once_a_model_is_loaded() -> None:
    """A start with the collector off does not stay so; others' settings are kept."""
    assert gc.isenabled()
    resume_collection()
    assert gc.get_freeze_count() == 0
    gc.disable()
    try:
        resume_collection()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
    finally:
        gc.enable()
        gc.unfreeze()


def test_bars_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe or a file gets none; a terminal gets one per stage, on stderr."""
    import io  # noqa: PLC0415 - for this test

    class Terminal(io.StringIO):
        """A stream that says it is a terminal."""

        def isatty(self) -> bool:
            """Say yes."""
            return True

    monkeypatch.setattr("sys.stderr", io.StringIO())
    with show_progress() as report:
        assert report is None
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    with show_progress() as report:
        assert report is not None
        report("fetch x", 0, 4_000_000)
        report("fetch x", 4_000_000, 4_000_000)
        report("load", 1, 3)
    for part in ("fetch x", "4.0 MB/4.0 MB", "load", "1/3"):
        assert part in screen.getvalue()


@pytest.mark.model
def test_the_readmes_command_answers(capsys: Captured) -> None:
    """The command that a newcomer types first says Berlin."""
    pytest.importorskip("torch")
    question = "What is the capital of Germany?"
    assert run(["generate", "--model", "smollm2-135m", "--chat", question]) == 0
    out, err = capsys.readouterr()
    assert "Berlin" in out
    assert err == ""


@pytest.mark.model
def test_the_cached_model_is_the_catalogs() -> None:
    """The file that find_local trusts by its size has the catalog's digest."""
    import hashlib  # noqa: PLC0415 - for this test

    from hybrid.models import KNOWN_MODELS, find_local  # noqa: PLC0415

    path = find_local(KNOWN_MODELS[0])
    assert isinstance(path, Path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == KNOWN_MODELS[0].sha256


def test_an_executor_gets_its_own_options(capsys: Captured, null: list[str]) -> None:
    """They arrive, and one that it does not have is refused by its name."""
    options = [*null, "p", "--max-tokens", "3", "--json"]
    assert run(["generate", *options, "-x", "max_model_len=64"]) == 0
    capsys.readouterr()
    assert run(["generate", *options, "--executor-option", "colour=red"]) == 1
    assert "colour" in capsys.readouterr().err


def test_an_executor_option_is_json_or_text() -> None:
    """Numbers and booleans are such; all else, OpenVINO's words too, is text."""
    given = ["a=32", "b=true", "KV_CACHE_PRECISION=u8", "c=", "d=x=y", 'e="7"']
    assert parse_executor_options(given) == {
        "a": 32,
        "b": True,
        "KV_CACHE_PRECISION": "u8",
        "c": "",
        "d": "x=y",
        "e": "7",
    }


@pytest.mark.parametrize("given", [["a"], ["=1"], ["a=1", "a=2"]])
def test_an_executor_option_without_sense_is_refused(given: list[str]) -> None:
    """No value, no name, or a name that comes twice."""
    with pytest.raises(ConfigError, match="--executor-option"):
        parse_executor_options(given)
