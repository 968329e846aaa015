"""Plugins lean on what is promised to them, and the guide says what that is."""

import ast
import inspect
import re
import tomllib
from dataclasses import fields as fields_of

import pytest

import hybrid.api
from hybrid.api import HookSpecs
from hybrid.testing import ExecutorConformance
from tests.documents import read_page, shown_files
from tests.source_tree import PLUGINS, ROOT, parse, place, python_files

GUIDE = read_page("docs/plugins.md")
ECHO = ROOT / PLUGINS / "hybrid-echo"
STABLE = {"hybrid.api"}
BESIDES = {"hybrid", "hybrid.testing"}
"""For what a plugin does not ship: tests and benchmarks."""
SEAMS = [
    "BlockCopy",
    "BlocksRemoved",
    "BlocksStored",
    "CSRBlockTable",
    "Capabilities",
    "EngineStarted",
    "EngineStopped",
    "ExecutorConfig",
    "ExecutorDescriptor",
    "ForwardResult",
    "KVSpec",
    "LogitsProcessorDescriptor",
    "ModelInfo",
    "ModelSource",
    "PackedBatch",
    "ScheduledRequest",
    "SchedulerDescriptor",
    "StepFinished",
    "StepPlan",
]
HOOKS = sorted(name for name in vars(HookSpecs) if name.startswith("hybrid_"))


def _engine_imports(tree: ast.Module) -> set[str]:
    """Every module of the engine that a file imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module or "")
    return {name for name in names if name.partition(".")[0] == "hybrid"}


def _words_in_code() -> set[str]:
    """Collect the words of the guide's code, in spans and blocks."""
    code = " ".join(re.findall(r"(?s)```.*?```|`[^`]+`", GUIDE))
    return set(re.findall(r"\w+", code))


def test_plugins_import_only_what_is_promised() -> None:
    """A plugin in this repository may do no more than one outside of it."""
    strays = [
        f"{place(path)}: {name}"
        for path in python_files(PLUGINS)
        for name in _engine_imports(parse(path))
        if name not in (STABLE if "src" in path.parts else STABLE | BESIDES)
    ]
    assert not strays


@pytest.mark.parametrize("hook", HOOKS)
def test_the_guide_has_every_hook_with_its_exact_arguments(hook: str) -> None:
    """As code, so that it can be copied."""
    arguments = list(inspect.signature(getattr(HookSpecs, hook)).parameters)[1:]
    assert f"`{hook}({', '.join(arguments)})`" in GUIDE


def test_the_guide_has_every_stable_name() -> None:
    """What an author may import is explained, or at least placed, on the page."""
    assert not set(hybrid.api.__all__) - _words_in_code()


@pytest.mark.parametrize("name", SEAMS)
def test_the_guide_has_every_field_of_the_seams(name: str) -> None:
    """What an author fills in or reads is explained, field by field."""
    seam = getattr(hybrid.api, name)
    fields = getattr(seam, "_fields", None) or [field.name for field in fields_of(seam)]
    assert not set(fields) - _words_in_code()


def test_the_guide_has_every_setting_of_the_kit() -> None:
    """Each attribute that a subclass of ``ExecutorConformance`` may set."""
    settings = {
        name
        for kind in ExecutorConformance.__mro__
        for name in inspect.get_annotations(kind)
    }
    assert "logit_tolerance" in settings
    assert not settings - _words_in_code()


def test_the_guide_names_no_hook_that_there_is_not() -> None:
    """A hook that was renamed or removed leaves the page, too."""
    assert set(re.findall(r"\bhybrid_[a-z_]+(?=\()", GUIDE)) <= set(HOOKS)


@pytest.mark.parametrize(("name", "text"), shown_files(GUIDE))
def test_the_guide_shows_the_example_as_it_is(name: str, text: str) -> None:
    """Whole files: what a reader copies from the page is what the tests have run."""
    assert text == (ECHO / name).read_text("utf-8")


def test_the_guide_shows_the_whole_example() -> None:
    """Metadata, hooks, executor, policy and the conformance run."""
    names = {name for name, _ in shown_files(GUIDE)}
    sources = ECHO / "src" / "hybrid_echo"
    files = [ECHO / "pyproject.toml", ECHO / "tests" / "test_conformance.py"]
    files += [path for path in sources.glob("*.py") if path.stem != "__init__"]
    assert {path.relative_to(ECHO).as_posix() for path in files} <= names


def test_every_plugin_is_a_distribution_of_its_own() -> None:
    """Own name and version, the engine as a dependency, an entry point in the group."""
    for path in (ROOT / PLUGINS).glob("*/pyproject.toml"):
        project = tomllib.loads(path.read_text("utf-8"))["project"]
        assert project["name"] == path.parent.name
        assert project["version"]
        requirements = [
            re.match(r"[\w-]+", line)[0] for line in project["dependencies"]
        ]
        assert "hybrid-llm-engine" in requirements
        assert project["entry-points"]["hybrid.plugins"]
        assert (path.parent / "README.md").is_file()
