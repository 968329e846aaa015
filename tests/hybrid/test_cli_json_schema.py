"""``--json-schema``: an answer on stdout that keeps to a file's schema."""

import json
from pathlib import Path

import jsonschema
import pytest

from hybrid.cli import run
from tests.hybrid.cli_stand import write_tiny_model

Captured = pytest.CaptureFixture[str]
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["n"],
    "additionalProperties": False,
}


def generate(folder: Path, schema: str) -> int:
    """Ask a tiny model on the null executor; the exit code."""
    path = folder / "schema.json"
    path.write_text(schema, encoding="utf-8")
    model = str(write_tiny_model(folder / "model"))
    options = ["-m", model, "--executor", "null", "--num-kv-blocks", "32"]
    return run(["generate", *options, "--json-schema", str(path), "An age:"])


def test_the_answer_keeps_to_the_schema(tmp_path: Path, capsys: Captured) -> None:
    """A model that knows nothing of JSON answers in it."""
    assert generate(tmp_path, json.dumps(SCHEMA)) == 0
    jsonschema.validate(json.loads(capsys.readouterr().out), SCHEMA)


def test_a_schema_that_is_none_is_refused(tmp_path: Path, capsys: Captured) -> None:
    """One line says what is wrong with it."""
    assert generate(tmp_path, '{"type": "strin"}') != 0
    output = capsys.readouterr()
    assert output.out == ""
    assert "strin" in output.err
    assert "Traceback" not in output.err


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: Captured) -> None:
    """Before any model is loaded."""
    path = str(tmp_path / "missing.json")
    assert run(["generate", "-m", "x", "--json-schema", path, "p"]) != 0
    assert "missing.json" in capsys.readouterr().err
