"""``hybrid chat``: the conversation that reaches the engine, and how it ends."""

import io
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import hybrid
from hybrid.cli import run
from hybrid.scheduler.errors import (
    EngineClosed,
    EngineFailed,
    InvalidRequest,
    Overloaded,
)
from tests.hybrid.cli_stand import ScriptedLLM, make_output, new_scripted_llm

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedLLM]:
    """A scripted engine in place of the real one."""
    scripted = new_scripted_llm()
    monkeypatch.setattr(hybrid, "LLM", scripted)
    return scripted


def pipe(monkeypatch: pytest.MonkeyPatch, text: str | bytes) -> None:
    """Put text on standard input."""
    data = text.encode() if isinstance(text, str) else text
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str | BaseException) -> None:
    """Sit at a terminal and enter lines; an exception stands for a key."""

    class Terminal(io.StringIO):
        """A stdin that says it is a terminal."""

        def isatty(self) -> bool:
            """Say yes."""
            return True

    pending = iter(lines)

    def read(_prompt: str) -> str:
        line = next(pending, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", read)


def contents(llm: type[ScriptedLLM]) -> list[list[str]]:
    """The contents of the messages of every request."""
    (engine,) = llm.instances
    return [[m["content"] for m in messages] for messages, _ in engine.requests]


def test_each_piped_line_is_a_message(
    llm: type[ScriptedLLM], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """The history grows by question and answer; only answers are on stdout."""
    pipe(monkeypatch, "one\n\n  two  \n")
    assert run(["chat", "-m", "x", "--system", "S"]) == 0
    assert capsys.readouterr() == ("Paris.\nParis.\n", "")
    assert contents(llm) == [["S", "one"], ["S", "one", "Paris.", "two"]]
    (engine,) = llm.instances
    roles = [message["role"] for message in engine.requests[1][0]]
    assert roles == ["system", "user", "assistant", "user"]
    assert engine.is_closed


def test_the_default_is_not_greedy(
    llm: type[ScriptedLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chat draws at 0.7 unless told otherwise."""
    pipe(monkeypatch, "one\n")
    assert run(["chat", "-m", "x"]) == 0
    pipe(monkeypatch, "one\n")
    assert run(["chat", "-m", "x", "-t", "0"]) == 0
    temperatures = [e.requests[0][1].temperature for e in llm.instances]
    assert temperatures == [0.7, 0.0]


def test_clear_keeps_only_the_system_message(
    llm: type[ScriptedLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """/clear forgets questions and answers."""
    pipe(monkeypatch, "one\n/clear\ntwo\n")
    assert run(["chat", "-m", "x", "--system", "S"]) == 0
    assert contents(llm) == [["S", "one"], ["S", "two"]]


def test_exit_ends_before_the_rest(
    llm: type[ScriptedLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """/exit leaves at once with success."""
    pipe(monkeypatch, "one\n/exit\ntwo\n")
    assert run(["chat", "-m", "x"]) == 0
    assert contents(llm) == [["one"]]


def test_an_unknown_command_is_no_message(
    llm: type[ScriptedLLM], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """A slip of the slash is told what there is."""
    pipe(monkeypatch, "/quit now\n")
    assert run(["chat", "-m", "x"]) == 0
    assert contents(llm) == []
    assert "unknown command /quit: /clear" in capsys.readouterr().err


def test_an_error_in_a_pipe_ends_it(
    llm: type[ScriptedLLM], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """A script must not go on as if it had been answered."""
    llm.error = InvalidRequest("too long")
    pipe(monkeypatch, "one\ntwo\n")
    assert run(["chat", "-m", "x"]) == 1
    assert capsys.readouterr().err == "error: too long\n"
    assert contents(llm) == [["one"]]


def test_bytes_that_are_no_text_are_refused(
    llm: type[ScriptedLLM], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """A piped line that is not UTF-8 is one error line."""
    pipe(monkeypatch, b"\xff\n")
    assert run(["chat", "-m", "x"]) == 1
    assert "not UTF-8" in capsys.readouterr().err
    assert llm.instances[0].is_closed


@pytest.mark.parametrize(
    "error",
    [InvalidRequest("no"), Overloaded("no", retry_after_s=1), EngineClosed("no")],
)
def test_at_a_terminal_an_error_is_reported_and_forgotten(
    llm: type[ScriptedLLM],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
    error: Exception,
) -> None:
    """The conversation goes on without the message that failed."""
    type_lines(monkeypatch, "one", "two")
    llm.error = error
    assert run(["chat", "-m", "x"]) == 0
    assert capsys.readouterr().err.count("error: no\n") == 2
    assert contents(llm) == [["one"], ["two"]]


def test_at_a_terminal_the_end_of_the_engine_is_the_end(
    llm: type[ScriptedLLM], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """There is nobody left to answer the next message."""
    type_lines(monkeypatch, "one", "two")
    llm.error = EngineFailed("the device is gone")
    assert run(["chat", "-m", "x"]) == 1
    assert capsys.readouterr().err.endswith("error: the device is gone\n")
    assert contents(llm) == [["one"]]


def test_at_a_terminal_an_answer_that_breaks_off_is_forgotten(
    llm: type[ScriptedLLM], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """The conversation goes on without it."""
    type_lines(monkeypatch, "one", "two")
    llm.breaks_off = "highest logit is nan"
    assert run(["chat", "-m", "x"]) == 0
    assert capsys.readouterr().err.count("error: highest logit is nan\n") == 2
    assert contents(llm) == [["one"], ["two"]]


@pytest.mark.usefixtures("llm")
def test_ctrl_d_leaves(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """The end of input is success."""
    type_lines(monkeypatch, EOFError())
    assert run(["chat", "-m", "x"]) == 0
    assert "/exit or Ctrl-D leaves" in capsys.readouterr().err


def test_ctrl_c_at_the_prompt_asks_again(
    llm: type[ScriptedLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stray Ctrl-C neither leaves nor loses the conversation."""
    type_lines(monkeypatch, "one", KeyboardInterrupt(), "two")
    assert run(["chat", "-m", "x"]) == 0
    assert contents(llm) == [["one"], ["one", "Paris.", "two"]]


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """The request is aborted, the half answer is history, the next is whole."""
    scripted = new_scripted_llm()

    class Interrupted(scripted):  # type: ignore[misc, valid-type]
        """Presses Ctrl-C in its first answer."""

        def _steps(self, num_samples: int) -> Iterator[Any]:
            if len(self.requests) > 1:
                yield from super()._steps(num_samples)
                return
            try:
                signal.raise_signal(signal.SIGINT)
                yield make_output(["Pa"])
                yield make_output(["Par"])
            except GeneratorExit:
                self.num_aborted += 1
                raise

    monkeypatch.setattr(hybrid, "LLM", Interrupted)
    type_lines(monkeypatch, "one", "two")
    assert run(["chat", "-m", "x"]) == 0
    assert capsys.readouterr().out == "Pa\nParis.\n\n"
    assert contents(scripted) == [["one"], ["one", "Pa", "two"]]
    assert scripted.instances[0].num_aborted == 1


@pytest.mark.usefixtures("llm")
def test_statistics_follow_each_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """--verbose adds a line of numbers per answer on stderr."""
    pipe(monkeypatch, "one\ntwo\n")
    assert run(["chat", "-m", "x", "-v"]) == 0
    assert capsys.readouterr().err.count("6 output tokens") == 2
