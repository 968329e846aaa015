"""``hybrid.api`` is one stable module: versioned, light, and documented."""

import inspect
import re
import subprocess
import sys

import pytest

import hybrid.api
from hybrid.plugins.hookspecs import HookSpecs
from hybrid.plugins.plugin_check import hook_names
from tests.hybrid import api_surface
from tests.source_tree import ROOT


def test_the_surface_is_what_its_snapshot_says() -> None:
    """An addition needs a new minor, anything else a new major; then a new snapshot."""
    old_version, *old = api_surface.SNAPSHOT.read_text("utf-8").splitlines()
    new = api_surface.surface()
    part = api_surface.change(old, new)
    assert part is None, api_surface.advice(part, old, new)
    assert old_version == api_surface.version(), (
        "API_VERSION changed: renew the snapshot with "
        "`python -m tests.hybrid.api_surface`"
    )


OLD = [
    "class A(ABC)",
    "abstract A.run() -> int",
    "required A(0: x: int)",
    "def f -> int",
    "required f(0: x: int)",
    "method A.go -> int",
    "hook H.begun",
    "argument H.begun(x: int)",
]


@pytest.mark.parametrize(
    ("new", "part"),
    [
        (OLD, None),
        ([*OLD, "optional A(1: y: int = 3)"], "minor"),
        ([*OLD, "optional A(y: int = 3)"], "minor"),
        ([*OLD, "class B(object)", "required B(0: x: int)"], "minor"),
        ([*OLD, "def g -> int", "required g(0: x: int)"], "minor"),
        ([*OLD, "optional f(y: int = 3)"], "minor"),
        ([*OLD, "argument H.begun(y: int)"], "minor"),
        ([*OLD, "method A.stop -> None", "required A.stop(x: int)"], "minor"),
        ([*OLD, "abstract A.stop() -> None"], "major"),
        ([*OLD, "required A(1: y: int)"], "major"),
        ([*OLD, "required f(y: int)"], "major"),
        ([*OLD, "required A.go(y: int)"], "major"),
        (OLD[:-1], "major"),
        ([line.replace("x: int", "x: str") for line in OLD], "major"),
        ([*OLD[:2], *OLD[3:], "optional A(0: y: int = 1)"], "major"),
    ],
)
def test_a_change_is_told_from_an_addition(new: list[str], part: str | None) -> None:
    """What old plugins need and what they must newly do break them, the rest not."""
    assert api_surface.change(OLD, new) == part


def test_a_snapshot_is_not_renewed_under_the_same_version() -> None:
    """A minor is enough for an addition, a major for everything."""
    major, minor = hybrid.api.API_VERSION
    assert not api_surface.is_raised(f"API {major}.{minor}", "minor")
    assert api_surface.is_raised(f"API {major}.{minor - 1}", "minor")
    assert not api_surface.is_raised(f"API {major}.{minor - 1}", "major")
    assert api_surface.is_raised(f"API {major - 1}.{minor + 3}", "major")


def test_every_name_is_there_once_and_sorted() -> None:
    """``__all__`` names what the module has, and nothing else is in it."""
    names = hybrid.api.__all__
    assert len(names) == len(set(names))
    public = {
        name
        for name, value in vars(hybrid.api).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public == set(names)


def test_the_surface_stands_on_no_model_library() -> None:
    """A plugin may be imported by every command, so it costs no torch."""
    code = (
        "import sys, hybrid.api; names = ('torch', 'transformers', 'tokenizers', "
        "'pydantic', 'typer'); print([n for n in names if n in sys.modules])"
    )
    run = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("name", hook_names())
def test_every_hook_says_what_its_arguments_are(name: str) -> None:
    """The specification is where an editor looks; the guide has a test of its own."""
    specification = getattr(HookSpecs, name)
    arguments = list(inspect.signature(specification).parameters)[1:]
    text = inspect.getdoc(specification) or ""
    assert re.findall(r"^ +(\w+): ", text, re.MULTILINE) == arguments
