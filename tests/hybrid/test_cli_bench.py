"""``hybrid bench``: its table, its JSON, its plots, and what it refuses."""

import builtins
import json
import re
from pathlib import Path
from typing import Any

import pytest

from hybrid.bench import Measurement, Workload
from hybrid.bench.plots import write_plots
from hybrid.cli import run
from tests.hybrid.bench_stand import make_report, make_run
from tests.source_tree import ROOT

Captured = pytest.CaptureFixture[str]
QUICK = ("--executor", "null", "--rounds", "1", "--output-tokens", "4")


def _measured(engine: str, batch: int, input_tokens: int = 8) -> Measurement:
    run_ = make_run(Workload(batch, input_tokens, 4), total_s=float(batch))
    return Measurement.of(engine, [run_], kv_bytes=2**20 * batch)


def _keys(value: Any) -> set[str]:
    """Every key of a JSON value, at any depth, but for labels of engines."""
    if isinstance(value, list):
        return set().union(*map(_keys, value))
    if not isinstance(value, dict):
        return set()
    engines = value.pop("engines", {})
    options = value.pop("options", {})
    inner = set().union(*map(_keys, [*engines.values(), *value.values()]))
    return {*value, *inner} | ({"engines", "options"} if options else set())


def test_figures_go_to_stdout_and_files(capsys: Captured, tmp_path: Path) -> None:
    """A table row for each workload; results.json and plots say where they are."""
    folder = tmp_path / "new" / "folder"
    assert run(["bench", *QUICK, "--batch", "1,2", "-o", str(folder)]) == 0
    out, err = capsys.readouterr()
    rows = [line.split()[:4] for line in out.splitlines()[1:]]
    assert rows == [["null", "1", "128", "4"], ["null", "2", "128", "4"]]
    written = re.findall(r"wrote (.*)", err)
    assert sorted(Path(path).name for path in written) == [
        "latency.png",
        "memory.png",
        "results.json",
        "throughput.png",
    ]
    found = json.loads((folder / "results.json").read_text("utf-8"))
    assert [one["workload"]["batch"] for one in found["measurements"]] == [1, 2]
    assert all(one["engine"] == "null" for one in found["measurements"])


def test_json_holds_what_the_page_says(capsys: Captured) -> None:
    """Every key stands, as code, in docs/cli.md; contexts hold prompt and answer."""
    arguments = ["--batch", "1", "--context", "8,16", "--json"]
    assert run(["bench", *QUICK, *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    work = [one["workload"] for one in found["measurements"]]
    assert [one["input_tokens"] for one in work] == [4, 12]
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    described = set(re.findall(r"`(\w+)`", page))
    assert {"peak_rss_bytes", "p99", "kv_block_bytes"} <= (keys := _keys(found))
    assert keys <= described


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["--batch", "1;2"], "--batch is '1;2'", 2),
        (["--context", "4,9"], "--context 4 leaves no prompt", 2),
        (["--batch", "0"], "batch is 0", 1),
        (["--rounds", "0"], "rounds is 0", 1),
        (["--executor", "null"], "executor null is given twice", 1),
        (["--executor", "nul:a=1"], "nul:a=1: .*did you mean", 1),
        (["--context", "9999"], "context of 9999 tokens", 1),
    ],
)
def test_wrong_options_are_one_line(
    capsys: Captured, arguments: list[str], message: str, code: int
) -> None:
    """The option or value is named, and nothing is on stdout."""
    assert run(["bench", *QUICK, *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(message, err)
    assert err.count("\n") == 1


def test_plots_without_matplotlib_are_refused_first(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line says what to install; no round was run for nothing."""
    importing = builtins.__import__

    def without_matplotlib(name: str, *others: Any, **keywords: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return importing(name, *others, **keywords)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    assert run(["bench", *QUICK, "-o", str(tmp_path)]) == 1
    assert "hybrid-llm-engine[bench]" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_unwritable_folder_is_found_first(capsys: Captured, tmp_path: Path) -> None:
    """A file in the folder's place ends the command before the rounds."""
    (tmp_path / "file").touch()
    assert run(["bench", *QUICK, "-o", str(tmp_path / "file")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_lines_go_through_what_was_measured(tmp_path: Path) -> None:
    """An engine is a line; with several contexts each has its own, and a figure."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    drawn: dict[str, dict[str, list[Any]]] = {}
    with pytest.MonkeyPatch.context() as patch:

        def note(self: Figure, path: Path, **_options: Any) -> None:
            lines = self.axes[0].get_lines()
            drawn[path.stem] = {
                str(line.get_label()): list(zip(*line.get_data(), strict=True))
                for line in lines
            }

        patch.setattr(Figure, "savefig", note)
        measured = [_measured("a", 8), _measured("a", 1), _measured("b", 1)]
        write_plots(make_report(*measured), tmp_path)
        assert "context" not in drawn
        assert drawn["throughput"] == {"a": [(1, 4.0), (8, 4.0)], "b": [(1, 4.0)]}
        write_plots(make_report(*measured, _measured("b", 1, 28)), tmp_path)
    assert drawn["memory"]["b, context 32"] == [(1, 1.0)]
    assert drawn["context"]["b, batch 1"] == [(12, 16.0), (32, 56.0)]


def test_plots_are_pictures(tmp_path: Path) -> None:
    """Each file is a PNG of the size that documents want."""
    from matplotlib.image import imread  # noqa: PLC0415 - an extra

    measured = (_measured("a", 1), _measured("a", 1, 28))
    paths = write_plots(make_report(*measured), tmp_path)
    assert [path.name for path in paths] == [
        "throughput.png",
        "latency.png",
        "memory.png",
        "context.png",
    ]
    for path in paths:
        picture = imread(path)
        assert picture.shape == (540, 1320, 4)
        assert 0 < (picture[..., :3].min(axis=2) < 0.5).mean() < 0.2


def test_help_explains_the_command(capsys: Captured) -> None:
    """--help is on stdout and succeeds."""
    assert run(["bench", "--help"]) == 0
    assert "--context" in capsys.readouterr().out
