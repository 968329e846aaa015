"""``--connect``: the commands over a server say what they say over a model."""

import io
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from hybrid import SamplingParams
from hybrid.cli import run
from hybrid.cli.answer import follow
from hybrid.cli.remote_llm import RemoteLLM
from hybrid.client import HybridClient
from hybrid.serving.served_model import ServedModel
from tests.hybrid.cli_stand import write_tiny_model
from tests.serving.client_stand import (
    ScriptedService,
    answers,
    chunk,
    model_files,
    pack,
    refuses,
    running_script,
    running_service,
    sent,
)
from tests.serving.service_stand import TIMEOUT_S, load_tiny

Captured = pytest.CaptureFixture[str]
SAMPLING = ("--max-tokens", "12", "-t", "0")


@dataclass(frozen=True)
class Places:
    """Options that lead to the same model twice."""

    model: tuple[str, ...]
    server: tuple[str, ...]
    name: str
    """What the server calls it."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """A tiny model, and a server that has it."""
    folder = tmp_path_factory.mktemp("model")
    path = str(write_tiny_model(folder))
    loaded = load_tiny(folder)
    model = ServedModel.of(loaded, name="tiny")
    with running_service(loaded.engine, model) as service:
        yield Places(
            ("--executor", "null", "-m", path),
            ("--connect", service.address),
            model.name,
        )


def pipe(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Put text on standard input."""
    stream = io.TextIOWrapper(io.BytesIO(text.encode()))
    monkeypatch.setattr("sys.stdin", stream)


def test_a_conversation(
    places: Places, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """History, system message and commands are the same; so are the answers."""
    said = []
    for options in (places.model, places.server):
        pipe(monkeypatch, "Grüße\nand then?\n/clear\nonce more\n")
        assert run(["chat", *options, *SAMPLING, "--system", "Be brief."]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert said[0].count("\n") >= 3


@pytest.mark.parametrize("prompt", [("Once upon",), ("--chat", "Hi"), ("Hi", "--n=2")])
def test_one_answer(places: Places, capsys: Captured, prompt: tuple[str, ...]) -> None:
    """A text, a message or several samples, as text and as JSON."""
    seeded = ("--max-tokens", "12", "-t", "1", "--seed", "5")
    for form in ((), ("--json",)):
        said = []
        for options in (places.model, places.server):
            assert run(["generate", *options, *seeded, *prompt, *form]) == 0
            said.append(capsys.readouterr().out)
        if not form:
            assert said[0] == said[1]
            continue
        own, other = (json.loads(text) for text in said)
        assert own["outputs"] == other["outputs"]
        assert own["prompt"] == other["prompt"]
        for key in ("prompt_tokens", "completion_tokens"):
            assert own["usage"][key] == other["usage"][key]
        assert other["model"] == places.name


def test_statistics_are_known(places: Places, capsys: Captured) -> None:
    """--verbose sums up what the server said."""
    assert run(["generate", *places.server, *SAMPLING, "-v", "Hi"]) == 0
    assert "2 prompt tokens" in capsys.readouterr().err


ENGINE = [
    ("--model", "x"),
    ("--executor", "null"),
    ("--num-kv-blocks", "3"),
    ("--no-prefix-caching",),
    ("--executor-option", "a=1"),
]


@pytest.mark.parametrize("command", [("chat",), ("generate", "Hi")])
@pytest.mark.parametrize("option", ENGINE, ids=lambda option: option[0])
def test_options_of_an_engine_are_refused(
    command: tuple[str, ...], option: tuple[str, ...], capsys: Captured
) -> None:
    """By name: they would change nothing at the server."""
    assert run([*command, "--connect", "127.0.0.1:1", *option]) == 2
    name = "--prefix-caching" if option[0].startswith("--no-") else option[0]
    assert f"{name} is for an engine of our own" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option",
    [
        ("--tls",),
        ("--tls-ca", "x"),
        ("--tls-cert", "x"),
        ("--tls-key", "x"),
        ("--token-file", "x"),
        ("--insecure",),
    ],
    ids=lambda option: option[0],
)
def test_options_of_a_server_need_one(
    option: tuple[str, ...], capsys: Captured
) -> None:
    """By name: nobody would be shown the certificate or the token."""
    assert run(["chat", *option]) == 2
    assert f"{option[0]} needs --connect" in capsys.readouterr().err


def test_nobody_there_is_told_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """One line, and the exit code of an error."""
    pipe(monkeypatch, "one\n")
    with running_script(ScriptedService(answers(7))) as address:
        pass
    assert run(["chat", "--connect", address]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_an_answer_that_breaks_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """What came is shown, and the error on a line of its own."""

    def act(request: Any, context: Any) -> Iterator[Any]:
        yield chunk(70)
        yield from refuses(grpc.StatusCode.UNAVAILABLE)(request, context)

    archive = sent(pack(dict(model_files(tmp_path / "model"))))
    pipe(monkeypatch, "one\ntwo\n")
    with running_script(ScriptedService(act, archive=archive)) as address:
        assert run(["chat", "--connect", address]) == 1
    out, err = capsys.readouterr()
    assert len(out) == 2
    assert out.endswith("\n")
    assert err == "error: scripted\n"


def test_an_answer_that_is_left_ends_at_the_server(tmp_path: Path) -> None:
    """What stops at Ctrl-C in process stops there, too."""
    gone = threading.Event()

    def act(request: Any, context: Any) -> Iterator[Any]:  # noqa: ARG001 - an Act
        context.add_callback(gone.set)
        yield chunk(70)
        gone.wait(2 * TIMEOUT_S)

    archive = sent(pack(dict(model_files(tmp_path / "model"))))
    with (
        running_script(ScriptedService(act, archive=archive)) as address,
        HybridClient(address) as client,
    ):
        outputs = RemoteLLM(client).stream("p", SamplingParams())
        answer = follow(outputs, None, stopped=lambda: True)
        assert answer is not None
        assert answer.output.outputs[0].token_ids == (70,)
        assert gone.wait(TIMEOUT_S)


def test_a_token_file_that_is_not_there_is_named(
    tmp_path: Path, capsys: Captured
) -> None:
    """As any file that an option names."""
    path = str(tmp_path / "absent")
    options = ["--connect", "127.0.0.1:1", "--token-file", path]
    assert run(["generate", *options, "Hi"]) == 1
    assert "absent" in capsys.readouterr().err
