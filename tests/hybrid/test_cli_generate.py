"""``hybrid generate``: what reaches the engine, stdout, stderr and the shell."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import hybrid
from hybrid.cli import run
from hybrid.scheduler.errors import ExecutorFailed, RequestTooLong
from tests.hybrid.cli_stand import ScriptedLLM, new_scripted_llm

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedLLM]:
    """A scripted engine in place of the real one."""
    scripted = new_scripted_llm()
    monkeypatch.setattr(hybrid, "LLM", scripted)
    return scripted


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Put bytes on standard input."""
    stream = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", stream)


def test_the_answer_and_nothing_else_is_on_stdout(
    llm: type[ScriptedLLM], capsys: Captured
) -> None:
    """The text ends in one newline; stderr is silent unless asked."""
    assert run(["generate", "-m", "x", "The capital is"]) == 0
    assert capsys.readouterr() == ("Paris.\n", "")
    (engine,) = llm.instances
    assert engine.requests[0][0] == "The capital is"
    assert engine.is_closed


def test_text_is_written_as_it_comes(
    llm: type[ScriptedLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step's new characters are written before the next step runs."""
    written: list[str] = []
    flushed: list[int] = []
    stdout = SimpleNamespace(
        write=written.append, flush=lambda: flushed.append(len(written))
    )
    monkeypatch.setattr("sys.stdout", stdout)
    assert run(["generate", "-m", "x", "p"]) == 0
    assert written == [*llm.answer, "\n"]
    assert flushed[:6] == [1, 2, 3, 4, 5, 6]


def test_a_message_becomes_a_conversation(llm: type[ScriptedLLM]) -> None:
    """--chat and --system are the user's and the system's messages."""
    assert run(["generate", "-m", "x", "--chat", "Hi", "--system", "Be brief."]) == 0
    assert llm.instances[0].requests[0][0] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


def test_sampling_options_become_sampling_parameters(llm: type[ScriptedLLM]) -> None:
    """Every sampling option arrives; the default is greedy and bounded."""
    options = "--max-tokens 9 --min-tokens 2 --temperature 0.5 --top-p 0.9 --top-k 40"
    options += " --min-p 0.1 --presence-penalty 0.2 --frequency-penalty 0.3 --seed 7"
    options += " --repetition-penalty 1.1 --stop A --stop B --ignore-eos --n 2"
    assert run(["generate", "-m", "x", "p", *options.split()]) == 0
    assert run(["generate", "-m", "x", "p"]) == 0
    given, default = (instance.requests[0][1] for instance in llm.instances)
    assert given == hybrid.SamplingParams(
        max_tokens=9,
        min_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        repetition_penalty=1.1,
        seed=7,
        stop=("A", "B"),
        ignore_eos=True,
        n=2,
    )
    assert default == hybrid.SamplingParams(temperature=0.0, max_tokens=512)


def test_engine_options_become_engine_keywords(llm: type[ScriptedLLM]) -> None:
    """Every engine option arrives under the keyword of its name."""
    options = "--executor null --dtype float32 --device cpu --block-size 8"
    options += " --kv-cache-memory 1000 --num-kv-blocks 5 --max-model-len 64"
    options += " --max-num-seqs 3 --max-num-batched-tokens 32 --no-prefix-caching"
    options += " --max-prefill-chunk-tokens 16 --no-chunked-prefill --num-threads 1"
    options += " --scheduling-policy priority --revision main"
    assert run(["generate", "-m", "x", "p", *options.split()]) == 0
    assert llm.instances[0].keywords == {
        "model": "x",
        "revision": "main",
        "executor": "null",
        "dtype": "float32",
        "device": "cpu",
        "block_size": 8,
        "kv_cache_memory": "1000",
        "num_kv_blocks": 5,
        "max_model_len": 64,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 32,
        "max_prefill_chunk_tokens": 16,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": False,
        "scheduling_policy": "priority",
        "num_threads": 1,
        "progress": None,
    }


def test_memory_may_be_a_text(llm: type[ScriptedLLM]) -> None:
    """A size with its unit is left for the engine to read."""
    assert run(["generate", "-m", "x", "p", "--kv-cache-memory", "2GiB"]) == 0
    assert llm.instances[0].keywords["kv_cache_memory"] == "2GiB"


@pytest.mark.parametrize("arguments", [["-"], ["--prompt-file", "-"]])
def test_the_prompt_may_come_from_a_pipe(
    llm: type[ScriptedLLM], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """Standard input is taken whole, newlines included."""
    pipe(monkeypatch, "Grüße\n\n漢".encode())
    assert run(["generate", "-m", "x", *arguments]) == 0
    assert llm.instances[0].requests[0][0] == "Grüße\n\n漢"


def test_the_prompt_may_come_from_a_file(
    llm: type[ScriptedLLM], tmp_path: Path
) -> None:
    """A file is taken byte for byte."""
    (tmp_path / "p.txt").write_bytes(b"a\r\nb\n")
    assert run(["generate", "-m", "x", "-f", str(tmp_path / "p.txt")]) == 0
    assert llm.instances[0].requests[0][0] == "a\r\nb\n"


def test_several_answers_come_one_after_the_other(
    llm: type[ScriptedLLM], capsys: Captured
) -> None:
    """With --n the answers are not mixed: each stands under its number."""
    assert run(["generate", "-m", "x", "p", "--n", "2"]) == 0
    assert capsys.readouterr().out == f"--- 0\n{llm.answer}\n--- 1\n{llm.answer}\n"


@pytest.mark.usefixtures("llm")
def test_json_is_one_object(capsys: Captured) -> None:
    """--json has text, ids, reasons and counts, and no stream beside it."""
    assert run(["generate", "-m", "x", "p", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result.pop("total_s") >= result.pop("first_token_s") >= 0
    assert result == {
        "model": "x",
        "prompt": "p",
        "outputs": [
            {
                "index": 0,
                "text": "Paris.",
                "token_ids": [0, 1, 2, 3, 4, 5],
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {"prompt_tokens": 2, "completion_tokens": 6, "cached_tokens": 1},
    }


@pytest.mark.usefixtures("llm")
def test_statistics_are_on_stderr_when_asked(capsys: Captured) -> None:
    """--verbose adds one line of numbers and leaves stdout as it was."""
    assert run(["generate", "-m", "x", "p", "--verbose"]) == 0
    out, err = capsys.readouterr()
    assert out == "Paris.\n"
    assert "2 prompt tokens (1 cached), 6 output tokens" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give exactly one of PROMPT, --prompt-file and --chat"),
        (["p", "--chat", "q"], "give exactly one of"),
        (["p", "-f", "-"], "give exactly one of"),
        (["p", "--system", "s"], "--system needs --chat"),
        (["p", "q"], "unexpected"),
        (["p", "--no-such-option"], "--no-such-option"),
        (["p", "--max-tokens", "many"], "--max-tokens"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    llm: type[ScriptedLLM], capsys: Captured, arguments: list[str], message: str
) -> None:
    """What cannot be meant is refused before any model is loaded."""
    assert run(["generate", "-m", "x", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, llm.instances) == ("", [])
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value", "field"),
    [
        ("--temperature", "-1", "temperature"),
        ("--temperature", "nan", "temperature"),
        ("--top-p", "0", "top_p"),
        ("--min-p", "2", "min_p"),
        ("--top-k", "-5", "top_k"),
        ("--max-tokens", "0", "max_tokens"),
        ("--n", "0", "n"),
        ("--seed", "-1", "seed"),
        ("--stop", "", "stop"),
        ("--repetition-penalty", "0", "repetition_penalty"),
        ("--presence-penalty", "3", "presence_penalty"),
        ("--min-tokens", "1000", "min_tokens"),
    ],
)
def test_a_value_out_of_range_is_one_line_with_its_field(
    llm: type[ScriptedLLM], capsys: Captured, option: str, value: str, field: str
) -> None:
    """The field is named, and no model is loaded for it."""
    assert run(["generate", "-m", "x", "p", option, value]) == 1
    assert llm.instances == []
    err = capsys.readouterr().err
    assert err.startswith(f"error: {field} ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            RequestTooLong("prompt\nis long", field="prompt", num_tokens=9, limit=8),
            "error: prompt is long",
        ),
        (ExecutorFailed("died"), "error: died"),
        (
            PermissionError(13, "Permission denied", "w.gguf"),
            "w.gguf: Permission denied",
        ),
        (OSError("plain"), "error: plain"),
        (ZeroDivisionError("inside"), "ZeroDivisionError: inside (HYBRID_DEBUG=1"),
        (MemoryError(), "error: MemoryError"),
    ],
)
def test_whatever_fails_is_one_line(
    llm: type[ScriptedLLM], capsys: Captured, error: Exception, line: str
) -> None:
    """Known or not, an error is one line and exit code 1; the engine is closed."""
    llm.error = error
    assert run(["generate", "-m", "x", "p"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert line in err
    assert err.count("\n") == 1
    assert llm.instances[0].is_closed


def test_text_that_is_not_utf8_is_refused(
    llm: type[ScriptedLLM], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that are no text never reach the tokenizer, from a pipe or an argument."""
    pipe(monkeypatch, b"abc\xff")
    assert run(["generate", "-m", "x", "-"]) == 1
    assert capsys.readouterr().err == (
        "error: standard input is not UTF-8: byte 3 is 0xff\n"
    )
    assert run(["generate", "-m", "x", "abc\udcff"]) == 1
    assert capsys.readouterr().err == "error: prompt is not UTF-8\n"
    assert llm.instances == []


def test_a_missing_file_is_named(capsys: Captured, tmp_path: Path) -> None:
    """The path and the system's reason are in the line."""
    path = str(tmp_path / "absent.txt")
    assert run(["generate", "-m", "x", "-f", path]) == 1
    assert capsys.readouterr().err == f"error: {path}: No such file or directory\n"
