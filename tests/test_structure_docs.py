"""Public names and options are explained where a reader looks for them."""

import ast
import re
import shlex

import pytest

from hybrid.cli.app import app
from hybrid.engine_config import EngineConfig
from hybrid.scheduler.sampling_params import SamplingParams
from tests.source_tree import (
    PLUGINS,
    ROOT,
    parse,
    place,
    public_definitions,
    python_files,
)


def _documents() -> str:
    pages = sorted((ROOT / "docs").glob("*.md"))
    return "\n".join(page.read_text("utf-8") for page in pages)


def _cli_options() -> list[str]:
    """Every spelling of every option and command, from the commands themselves."""
    from typer.main import get_command  # noqa: PLC0415 - typer's own introspection

    group = get_command(app)
    commands = {"": group, **getattr(group, "commands", {})}
    names = [name for name in commands if name]
    for command in commands.values():
        for parameter in command.params:
            if parameter.param_type_name == "option":
                names += [*parameter.opts, *parameter.secondary_opts]
    return sorted(set(names))


def test_everything_public_has_a_docstring() -> None:
    """Modules, classes, functions and methods say what they are, tests included."""
    silent = []
    for path in python_files():
        tree = parse(path)
        if ast.get_docstring(tree) is None:
            silent.append(place(path))
        silent += [
            f"{place(path, node)} {name}"
            for name, node in public_definitions(tree.body)
            if not ast.get_docstring(node) and not _is_overload(node)
        ]
    assert not silent


def _is_overload(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any("overload" in ast.unparse(decorator) for decorator in decorators)


def test_tests_say_what_they_state() -> None:
    """A test's docstring is a sentence, not a repetition of its name."""
    thin = []
    for path in python_files("tests", PLUGINS):
        for name, node in public_definitions(parse(path).body):
            text = ast.get_docstring(node) or ""
            if name.startswith("test_") and len(text.split()) < 4:
                thin.append(f"{place(path, node)} {name}")
    assert not thin


def _names_in_code(text: str) -> set[str]:
    """Collect the words that stand in a page's code spans."""
    return {word for span in re.findall(r"`[^`\n]+`", text) for word in _words(span)}


def _words(text: str) -> list[str]:
    return re.findall(r"[\w-]+", text)


def test_every_engine_keyword_is_documented() -> None:
    """Each keyword of ``LLM`` stands, as code, in docs/."""
    assert sorted(set(EngineConfig.model_fields) - _names_in_code(_documents())) == []


def test_every_sampling_field_is_documented() -> None:
    """Each field of ``SamplingParams`` stands, as code, in docs/."""
    fields = set(SamplingParams.__dataclass_fields__)
    assert sorted(fields - _names_in_code(_documents())) == []


def test_every_command_line_option_is_documented() -> None:
    """Every command and every spelling of its options stands in docs/cli.md."""
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    assert sorted(set(_cli_options()) - set(_words(page))) == []


def test_every_sampling_option_of_the_command_line_is_a_field() -> None:
    """The command line invents no sampling words of its own."""
    from hybrid.cli.engine_options import EngineOptions  # noqa: PLC0415 - for this test
    from hybrid.cli.sampling_options import SamplingOptions  # noqa: PLC0415

    sampling = set(SamplingOptions.__dataclass_fields__)
    assert sampling <= set(SamplingParams.__dataclass_fields__)
    assert set(EngineOptions.__dataclass_fields__) <= set(EngineConfig.model_fields)


def _shown_commands() -> list[str]:
    """Every ``hybrid`` command line that the documents show as code."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    pages += sorted((ROOT / "docs").glob("*.md"))
    texts = [page.read_text("utf-8") for page in pages if page.exists()]
    lines = [line for text in texts for line in text.splitlines()]
    parts = [part for line in lines for part in re.split(r"&&|\|", line)]
    shown = (re.match(r"[\s`$]*(hybrid [a-z-][^`#]*)", part) for part in parts)
    return sorted({match[1].strip() for match in shown if match})


@pytest.mark.parametrize("line", _shown_commands())
def test_commands_that_the_documents_show_exist(line: str) -> None:
    """A command copied from a page names a command and options that there are."""
    known = {*_cli_options(), "--help", "--version"}
    words = shlex.split(line)[1:]
    named = [words[0], *(word.partition("=")[0] for word in words if word[0] == "-")]
    assert set(named) - {"-"} <= known
