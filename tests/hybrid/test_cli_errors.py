"""What no command expects: absurd numbers, unknown homes, panics in Rust."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import hybrid
from hybrid.cli import run
from hybrid.cli.standard_streams import MAX_NOTE_CHARACTERS
from hybrid.scheduler.errors import ExecutorFailed
from hybrid.scheduler.interface import FinishReason
from tests.hybrid.cli_stand import ScriptedLLM, new_scripted_llm, write_tiny_model
from tests.source_tree import ROOT

Captured = pytest.CaptureFixture[str]
COMMAND = (sys.executable, "-c", "from hybrid.cli import main; main()")
DIGITS = "9" * 5000


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedLLM]:
    """A scripted engine in place of the real one."""
    scripted = new_scripted_llm()
    monkeypatch.setattr(hybrid, "LLM", scripted)
    return scripted


class PanicException(BaseException):
    """Like the one that a panic in a Rust extension raises."""


def test_a_panic_is_one_line(llm: type[ScriptedLLM], capsys: Captured) -> None:
    """What is no Exception either is told like one; the engine is closed."""
    llm.error = PanicException("no entry found for key")
    assert run(["generate", "-m", "x", "p"]) == 1
    assert capsys.readouterr().err == (
        "error: PanicException: no entry found for key (HYBRID_DEBUG=1 shows where)\n"
    )
    assert llm.instances[0].is_closed


def test_an_answer_that_breaks_off_is_an_error(
    llm: type[ScriptedLLM], capsys: Captured
) -> None:
    """What came is shown; the reason and the exit code say that it is not all."""
    llm.breaks_off = "highest logit is nan"
    assert run(["generate", "-m", "x", "p"]) == 1
    assert capsys.readouterr() == ("Paris.\n", "error: highest logit is nan\n")
    assert run(["generate", "-m", "x", "p", "--json"]) == 1
    assert capsys.readouterr() == ("", "error: highest logit is nan\n")


def test_an_answer_that_somebody_else_ended_is_an_error(
    llm: type[ScriptedLLM], capsys: Captured
) -> None:
    """A server that shuts down, for one: a script must not take it for the whole."""
    llm.last_reason = FinishReason.ABORT
    assert run(["generate", "-m", "x", "p"]) == 1
    out, err = capsys.readouterr()
    assert out == "Paris.\n"
    assert err == "error: the answer is cut off: whoever serves it ended it\n"


def test_a_traceback_is_there_for_who_wants_it(
    llm: type[ScriptedLLM], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HYBRID_DEBUG=1 shows where an error came from."""
    monkeypatch.setenv("HYBRID_DEBUG", "1")
    llm.error = ExecutorFailed("died")
    assert run(["generate", "-m", "x", "p"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: died\n")
    assert "Traceback" in err


def test_a_generators_end_is_not_ours_to_tell(llm: type[ScriptedLLM]) -> None:
    """GeneratorExit is passed on to whoever closes."""
    llm.error = GeneratorExit()
    with pytest.raises(GeneratorExit):
        run(["generate", "-m", "x", "p"])


def test_a_tokenizer_that_panics_leaves_no_traceback(tmp_path: Path) -> None:
    """A template that names a missing special token ends in our line, exit code 1."""
    pytest.importorskip("tokenizers")
    path = write_tiny_model(tmp_path / "tiny") / "tokenizer.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    token = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    settings["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [token, first],
        "pair": [first, second],
        "special_tokens": {},
    }
    path.write_text(json.dumps(settings), encoding="utf-8")
    result = subprocess.run(  # noqa: S603 - our own interpreter
        [*COMMAND, "generate", "p", "--executor", "null", "-m", str(path.parent)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("option", "value", "limit"),
    [
        ("--kv-cache-memory", DIGITS, f"{2**60:,}"),
        ("--kv-cache-memory", f"{DIGITS}GiB", f"{2**60:,}"),
        ("--num-threads", "9" * 14, "must be at most"),
        ("--num-kv-blocks", "9" * 20, "bytes of memory are free"),
        ("--max-model-len", "9" * 20, "256"),
        ("--max-tokens", DIGITS, "exceeded maximum size"),
        ("--n", "9" * 20, "1024"),
        ("--seed", "9" * 30, f"{2**64 - 1}"),
    ],
)
def test_an_absurd_number_is_a_short_line(
    tmp_path: Path, capsys: Captured, option: str, value: str, limit: str
) -> None:
    """The option and the limit are named, the value is not printed in full length."""
    pytest.importorskip("tokenizers")
    model = str(write_tiny_model(tmp_path / "tiny"))
    arguments = ["generate", "p", "--executor", "null", "-m", model, option, value]
    assert run(arguments) in {1, 2}
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    name = option.removeprefix("--")
    assert name in err or name.replace("-", "_") in err
    assert limit in err
    assert err.count("\n") == 1
    assert len(err) < MAX_NOTE_CHARACTERS


@pytest.mark.parametrize(
    "command",
    [["models"], ["pull", "smollm2-135m"], ["generate", "p", "-m", "smollm2-135m"]],
)
def test_a_cache_below_an_unknown_home_is_one_line(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """The variable and its value are named."""
    monkeypatch.setenv("HYBRID_CACHE", "~no-such-user/x")
    assert run(command) == 1
    assert capsys.readouterr().err == (
        "error: HYBRID_CACHE is '~no-such-user/x': no such home directory is known "
        "here\n"
    )


def test_a_model_below_an_unknown_home_is_one_line(capsys: Captured) -> None:
    """The model is named as it was given."""
    assert run(["generate", "p", "-m", "~no-such-user/x"]) == 1
    assert capsys.readouterr().err == (
        "error: no model '~no-such-user/x': no such home directory is known here\n"
    )
