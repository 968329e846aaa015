"""Ctrl-C and closed pipes: what is stopped, what is said, what the shell sees."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hybrid
from hybrid.cli import run
from hybrid.cli.answer import follow
from hybrid.cli.interrupt import InterruptFlag
from tests.hybrid.cli_stand import ScriptedLLM, make_output, new_scripted_llm
from tests.source_tree import ROOT


def press_ctrl_c() -> None:
    """Send this process what a terminal sends."""
    signal.raise_signal(signal.SIGINT)


def test_the_first_ctrl_c_is_a_flag_and_the_second_an_exception() -> None:
    """One press lets the step finish; an impatient second one does not."""
    before = signal.getsignal(signal.SIGINT)
    with InterruptFlag() as flag:
        assert not flag.is_set()
        press_ctrl_c()
        assert flag.is_set()
        with pytest.raises(KeyboardInterrupt):
            press_ctrl_c()
    assert signal.getsignal(signal.SIGINT) is before


def test_generate_stops_after_the_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was said stays on stdout; the request is aborted, the engine closed."""
    scripted = new_scripted_llm()

    class Interrupted(scripted):  # type: ignore[misc, valid-type]
        """Presses Ctrl-C in the middle of its second step."""

        def _steps(self, num_samples: int) -> Iterator[Any]:
            try:
                yield make_output(["P"] * num_samples)
                press_ctrl_c()
                yield make_output(["Pa"] * num_samples)
                yield make_output(["Par"] * num_samples)
            except GeneratorExit:
                self.num_aborted += 1
                raise

    monkeypatch.setattr(hybrid, "LLM", Interrupted)
    assert run(["generate", "-m", "x", "p"]) == 130
    assert capsys.readouterr() == ("Pa\n", "error: interrupted\n")
    (engine,) = scripted.instances
    assert (engine.num_aborted, engine.is_closed) == (1, True)


@pytest.mark.parametrize("stage", ["load", "answer"])
def test_an_interrupt_anywhere_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stage: str
) -> None:
    """KeyboardInterrupt while loading or in a step gives exit code 130."""
    scripted = new_scripted_llm()
    scripted.error = KeyboardInterrupt()
    if stage == "load":

        def load(_self: ScriptedLLM, **_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(scripted, "__init__", load)
    monkeypatch.setattr(hybrid, "LLM", scripted)
    assert run(["generate", "-m", "x", "p"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_following_stops_when_told() -> None:
    """The stream is closed, and the last state is what came before."""
    closed: list[bool] = []

    def steps() -> Iterator[Any]:
        try:
            for end in range(1, 10):
                yield make_output(["abcdefghi"[:end]])
        finally:
            closed.append(True)

    texts: list[str] = []
    answer = follow(steps(), texts.append, lambda: len(texts) == 3)
    assert answer is not None
    assert answer.output.outputs[0].text == "abc"
    assert (texts, closed) == (["a", "b", "c"], [True])


def test_nothing_at_all_is_no_answer() -> None:
    """A stream that yields nothing gives ``None``."""
    assert follow(iter(()), None) is None


def test_a_reader_that_left_is_no_error() -> None:
    """``| head`` ends quietly: no traceback, no error line."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", "from hybrid.cli import main; main()"]
    result = subprocess.run(  # noqa: S603 - our own interpreter
        [*command, "models", "--json"],
        cwd=ROOT,
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)
    assert result.stderr == b""
    assert result.returncode == 1


ENDLESS = """
import os, signal, sys, time
import hybrid
from hybrid.cli import main
from tests.hybrid.cli_stand import ScriptedLLM, make_output

class Endless(ScriptedLLM):
    instances = []

    def __init__(self, **keywords):
        if sys.argv[1] == "chat" and "load" in sys.argv[-1]:
            print("loading", flush=True, file=sys.__stdout__)
            time.sleep(60)
        super().__init__(**keywords)

    def _steps(self, num_samples):
        for end in range(1, 10_000):
            yield make_output(["x" * end])
            time.sleep(0.01)

    def close(self):
        print("closed", file=sys.__stdout__, flush=True)

hybrid.LLM = Endless
main()
"""
"""The command over an engine that answers without end; says when it is closed."""


def signalled(
    number: signal.Signals, *arguments: str, ignored: bool = False
) -> tuple[int, str, str]:
    """Run a command, signal it once it has written, and return how it ended."""

    def inherit() -> None:
        signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)

    process = subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", ENDLESS, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=inherit,  # noqa: PLW1509 - no threads here
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"one\ntwo\n")
    process.stdin.flush()
    first = os.read(process.stdout.fileno(), 7).decode()
    process.send_signal(number)
    if ignored:
        first += os.read(process.stdout.fileno(), 7).decode()
        process.kill()
    out, err = process.communicate(timeout=20)
    return process.returncode, first + out.decode(), err.decode()


@pytest.mark.parametrize(
    "command", [["generate", "p", "-m", "x"], ["chat", "-m", "x"], ["chat", "-m=load"]]
)
def test_sigterm_ends_quietly(command: list[str]) -> None:
    """No line and no traceback, exit code 143, the engine closed if there was one."""
    code, out, err = signalled(signal.SIGTERM, *command)
    assert (code, err) == (143, "")
    assert out.endswith("closed\n") or command[-1] == "-m=load"


@pytest.mark.parametrize(
    "command", [["generate", "p", "-m", "x"], ["chat", "-m", "x"], ["chat", "-m=load"]]
)
def test_sigint_ends_with_a_line(command: list[str]) -> None:
    """In a pipe Ctrl-C ends a conversation too: its other messages are not asked."""
    code, out, err = signalled(signal.SIGINT, *command)
    assert (code, err) == (130, "error: interrupted\n")
    assert out.endswith("closed\n") or command[-1] == "-m=load"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_is_ignored_stays_so(number: signal.Signals) -> None:
    """What a shell runs in the background survives a Ctrl-C meant for another."""
    code, _, err = signalled(number, "generate", "p", "-m", "x", ignored=True)
    assert (code, err) == (-signal.SIGKILL, "")


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [
        (signal.SIGINT, 130, b"error: interrupted\n"),
        (signal.SIGTERM, 143, b""),
    ],
)
def test_no_import_is_cut_by_an_exception(
    tmp_path: Path, number: signal.Signals, code: int, line: bytes
) -> None:
    """Libraries in C++ would abort: the process leaves without unwinding them."""
    (tmp_path / "library.py").write_text(
        "import signal, sys\n"
        "try:\n"
        f"    signal.raise_signal({int(number)})\n"
        "finally:\n"
        "    print('raised', file=sys.stderr, flush=True)\n"
    )
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import hybrid\n"
        "def load(**_): import library\n"
        "hybrid.LLM = load\n"
        "from hybrid.cli import main; main()"
    )
    result = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", script, "generate", "p", "-m", "x"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (code, b"", line)
