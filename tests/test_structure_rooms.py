"""Rooms import one way, by their full names, and nothing heavy comes by accident."""

import ast
import json
import subprocess
import sys
from importlib.util import resolve_name
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

from tests.source_tree import PACKAGE_FOLDERS, ROOMS, ROOT, parse, place, python_files

_HEAVY = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "gguf",
    "sentencepiece",
    "huggingface_hub",
    "numpy",
    "jinja2",
)
_PROBE = """
import sys, time
bare = set(sys.modules)
started = time.process_time()
import {module}
spent = time.process_time() - started
import json
print(json.dumps([spent, sorted(set(sys.modules) - bare)]))
"""


def import_in_fresh_process(module: str) -> tuple[float, list[str]]:
    """Return the CPU seconds that an import takes, and the modules it brings."""
    run = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", _PROBE.format(module=module)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    spent, modules = json.loads(run.stdout)
    return spent, modules


def test_import_contracts_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """Every contract of import-linter in pyproject.toml is kept."""
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert status == 0, capsys.readouterr().out


def _absolute_imports(path: Path) -> list[tuple[str, str]]:
    """Every module that a file imports by its whole name: (place, name)."""
    found = []
    for node in ast.walk(parse(path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        found += [(place(path, node), name) for name in names]
    return found


def test_nobody_imports_a_room_by_its_bare_name() -> None:
    """A bare room import would be a second copy of every class of that room."""
    bare = [
        f"{where}: {name}"
        for path in python_files()
        for where, name in _absolute_imports(path)
        if name.partition(".")[0] in ROOMS
    ]
    assert not bare


def test_relative_imports_stay_inside_their_room() -> None:
    """What climbs out of a room with dots hides which room it leans on."""
    strays = []
    for path in python_files(*ROOMS):
        parts = path.relative_to(ROOT).with_suffix("").parts
        package = ".".join(parts[:-1])
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ImportFrom) and node.level > len(parts) - 1:
                strays.append(place(path, node))
            elif isinstance(node, ast.ImportFrom) and node.level:
                target = resolve_name("." * node.level + (node.module or ""), package)
                assert target.startswith(parts[0])
    assert not strays


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    """Whatever module the package gains above the rooms, no room reaches up to it."""
    below = ROOMS[: ROOMS.index(room) + 1]
    allowed = tuple(f"hybrid.{name}" for name in below)
    upward = [
        f"{where}: {name}"
        for path in python_files(room)
        for where, name in _absolute_imports(path)
        if name.partition(".")[0] == "hybrid"
        and not f"{name}.".startswith(tuple(f"{a}." for a in allowed))
    ]
    assert not upward


def test_rooms_are_links_beside_the_package() -> None:
    """Each room is reached as hybrid.<room> through a relative symbolic link."""
    links = {room: ROOT / "hybrid" / room for room in ROOMS}
    targets = {room: str(link.readlink()) for room, link in links.items()}
    assert targets == {room: f"../{room}" for room in ROOMS}


def test_no_module_is_named_for_a_library_or_for_nothing() -> None:
    """A module named like a library shadows it to a reader; utils name nothing."""
    banned = {"utils", "common", "misc", "helpers", "queue", "logging", *_HEAVY, "vllm"}
    paths = [p.relative_to(ROOT) for p in python_files(*PACKAGE_FOLDERS)]
    assert not [p for p in paths if banned & {p.stem, *p.parts[1:-1]}]


def test_importing_the_package_is_light() -> None:
    """``import hybrid`` brings no tensor, model or array library and costs < 0.3 s."""
    runs = [import_in_fresh_process("hybrid") for _ in range(3)]
    modules = runs[0][1]
    roots = {name.partition(".")[0] for name in modules}
    assert not roots & {*_HEAVY, "pydantic", "typer", "rich", "structlog"}
    # CPU seconds, the best of three: another process's load does not show.
    assert min(spent for spent, _ in runs) < 0.3
    assert len(modules) < 100


def test_importing_the_command_line_is_light() -> None:
    """The commands' help and version need no engine, so none is imported."""
    _, modules = import_in_fresh_process("hybrid.cli.app")
    roots = {name.partition(".")[0] for name in modules}
    assert not roots & {*_HEAVY, "pydantic"}
    assert "hybrid.llm" not in modules


@pytest.mark.parametrize("module", ["hybrid.llm", "hybrid.async_engine", "hybrid.api"])
def test_engine_and_plugins_need_no_text_or_model_library(module: str) -> None:
    """With an executor that needs no model the core's dependencies suffice."""
    _, modules = import_in_fresh_process(module)
    roots = {name.partition(".")[0] for name in modules}
    assert not roots & (set(_HEAVY) - {"numpy"})


@pytest.mark.parametrize("room", ROOMS)
def test_importing_a_room_is_light(room: str) -> None:
    """A room by itself imports no model library."""
    _, modules = import_in_fresh_process(f"hybrid.{room}")
    roots = {name.partition(".")[0] for name in modules}
    assert not roots & {"torch", "transformers", "tokenizers"}


def test_importing_events_configures_nothing() -> None:
    """Only an entry point decides how events are written."""
    code = "import structlog, hybrid.events as e; assert not structlog.is_configured()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)  # noqa: S603 - ours
