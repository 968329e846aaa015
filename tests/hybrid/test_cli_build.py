"""``hybrid build``: what it prints, what it writes, what it refuses."""

from pathlib import Path
from typing import Any

import pytest

from hybrid import LLM, SamplingParams, model_build
from hybrid.backends.cpu import native_library
from hybrid.backends.cpu.engine_build import build_engine_directory
from hybrid.backends.cpu.engine_directory import (
    MANIFEST_NAME,
    WEIGHTS_NAME,
    read_engine,
)
from hybrid.backends.cpu.native_library import NativeUnavailable, load_library
from hybrid.cli import run
from tests.backends.tiny_checkpoints import make_model, write_gguf

Captured = pytest.CaptureFixture[str]


def _has_kernels() -> bool:
    try:
        load_library()
    except NativeUnavailable:
        return False
    return True


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Llama with a tokenizer, as one file."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, make_model("llama"))
    return str(path)


def test_it_prints_what_the_engine_takes(
    model: str, tmp_path: Path, capsys: Captured
) -> None:
    """One row a fact: weights by format, activations shared and not, the cache."""
    out = tmp_path / "engine"
    arguments = ["--quantization", "int8", "--kv-cache-dtype", "int8"]
    assert run(["build", model, "-o", str(out), *arguments]) == 0
    printed, err = capsys.readouterr()
    assert err == ""
    rows = [" ".join(line.split()) for line in printed.splitlines()]
    assert rows == [
        f"engine {out}",
        "architecture LlamaForCausalLM",
        "quantization int8",
        "int8 weights 108.8 kB",
        "vectors 1.3 kB",
        "all weights 110.1 kB",
        "activations 81.9 kB for 64 tokens at once (356.4 kB if nothing were shared)",
        "KV cache 160 bytes a token (int8)",
    ]


@pytest.mark.skipif(not _has_kernels(), reason="the CPU kernels are not built")
def test_the_directory_is_a_model(model: str, tmp_path: Path) -> None:
    """With its own tokenizer it answers as the file that it was built from does."""
    out = tmp_path / "engine"
    assert run(["build", model, "-o", str(out), "--quantization", "fp32"]) == 0
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    answers = []
    for name, executor in ((str(out), "cpu"), (model, "torch")):
        llm = LLM(name, executor=executor, dtype="float32", num_kv_blocks=8)
        try:
            answers.append(llm.generate("hello world", params)[0].outputs[0])
        finally:
            llm.close()
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[0].text == answers[1].text


def test_an_engine_is_replaced(model: str, tmp_path: Path) -> None:
    """By one of other options; an empty directory is filled; nothing else is left."""
    out = tmp_path / "engine"
    out.mkdir()
    for quantization in ("int8", "bf16"):
        assert (
            run(["build", model, "-o", str(out), "--quantization", quantization]) == 0
        )
        assert read_engine(out).quantization == quantization
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("is_file", [True, False])
def test_nothing_else_is_replaced(
    *, model: str, is_file: bool, tmp_path: Path, capsys: Captured
) -> None:
    """Not a file, not a directory that holds something: it stays as it is."""
    out = tmp_path / "mine"
    kept = out
    if not is_file:
        out.mkdir()
        kept = out / "notes.txt"
    kept.write_text("mine")
    assert run(["build", model, "-o", str(out)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: output is {out}, which holds something else")
    assert kept.read_text() == "mine"


def test_a_failed_build_leaves_the_old_engine(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """What is there goes only when the new one is whole."""
    out = tmp_path / "engine"
    assert run(["build", model, "-o", str(out)]) == 0

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device", str(out))

    monkeypatch.setattr(model_build, "build_engine_directory", fail)
    assert run(["build", model, "-o", str(out)]) == 1
    assert capsys.readouterr().err == f"error: {out}: No space left on device\n"
    assert read_engine(out).quantization == "int8"
    assert list(tmp_path.iterdir()) == [out]


def test_a_full_disk_is_named_with_what_it_takes(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """By the directory that was asked for, not by the one that was to become it."""
    out = tmp_path / "engine"

    def write(*arguments: Any) -> None:
        (arguments[2] / WEIGHTS_NAME).symlink_to("/dev/full")
        build_engine_directory(*arguments)

    monkeypatch.setattr(model_build, "build_engine_directory", write)
    assert run(["build", model, "-o", str(out), "--quantization", "int8"]) == 1
    told = f"error: {out}: No space left on device; the weights take 110,080 bytes\n"
    assert capsys.readouterr().err == told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("out", "told"),
    [
        ("/proc", "output is /proc, a mount point"),
        (".", "here, where this command runs"),
        ("..", ", where this command runs"),
    ],
)
def test_what_cannot_be_replaced_is_refused_before_the_build(
    *,
    model: str,
    out: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    """Not after minutes; even where it is empty."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(model_build, "build_engine_directory", None)
    assert run(["build", model, "-o", out]) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("is_built", [True, False])
def test_a_link_stays_a_link(*, model: str, is_built: bool, tmp_path: Path) -> None:
    """What it names is written, be it there already or not."""
    out, link = tmp_path / "engine", tmp_path / "current"
    link.symlink_to(out)
    if is_built:
        assert run(["build", model, "-o", str(out), "--quantization", "bf16"]) == 0
    assert run(["build", model, "-o", str(link), "--quantization", "int8"]) == 0
    assert link.readlink() == out
    assert not out.is_symlink()
    assert read_engine(out).quantization == "int8"


def test_an_engine_is_no_checkpoint(
    model: str, tmp_path: Path, capsys: Captured
) -> None:
    """It was rounded once; another is built from what it came from."""
    assert run(["build", model, "-o", str(tmp_path / "a")]) == 0
    capsys.readouterr()
    assert run(["build", str(tmp_path / "a"), "-o", str(tmp_path / "b")]) == 1
    assert "an engine already; build from its checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--quantization", "int2"], "quantization is 'int2', must be auto or one of"),
        (["--kv-cache-dtype", "fp8"], "kv_cache_dtype is 'fp8', must be auto or one"),
    ],
)
def test_unknown_values_are_refused(
    arguments: list[str], told: str, model: str, tmp_path: Path, capsys: Captured
) -> None:
    """In one line that names what there is, before anything is read."""
    assert run(["build", model, "-o", str(tmp_path / "e"), *arguments]) == 1
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


def test_a_model_that_is_not_there_is_named(tmp_path: Path, capsys: Captured) -> None:
    """As every command says it."""
    assert run(["build", "./nowhere", "-o", str(tmp_path / "e")]) == 1
    assert "./nowhere" in capsys.readouterr().err


def test_the_output_is_needed(model: str, capsys: Captured) -> None:
    """Wrong usage is told in one line, with the option."""
    assert run(["build", model]) == 2
    assert "--output" in capsys.readouterr().err


def test_without_kernels_an_engine_is_built_unchecked(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """For another machine, and that is said."""

    def missing() -> native_library.NativeLibrary:
        raise NativeUnavailable("no compiler was here")

    monkeypatch.setattr(model_build, "load_library", missing)
    assert run(["build", model, "-o", str(tmp_path / "e")]) == 0
    told = capsys.readouterr().err
    assert "cpu.engine_unchecked" in told
    assert "no compiler was here" in told
    assert (tmp_path / "e" / MANIFEST_NAME).is_file()
