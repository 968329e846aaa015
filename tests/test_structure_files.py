"""What lies in the tree, and what must not."""

import os
import re
import tomllib
from itertools import chain

import pytest

from tests.source_tree import ROOT, place, project_files

# In pieces, so that this file passes its own test.
_HOSTS = ("pypi" + r"\.org", "python" + "hosted", r"download\.py" + r"torch\.org")
_MACHINE = ("/" + r"work/(?!\*)", "/" + "tmp/env", "/" + "opt/pypi", "/" + "root/")


@pytest.mark.parametrize("name", ["LICENSE", "README.md", "CHANGELOG.md", ".ci/run"])
def test_the_project_has(name: str) -> None:
    """A newcomer finds licence, start page, history and the CI command."""
    path = ROOT / name
    assert path.is_file()
    assert path.stat().st_size > 0


def test_the_package_is_typed() -> None:
    """py.typed tells type checkers to believe the annotations."""
    assert (ROOT / "hybrid" / "py.typed").is_file()


def test_scripts_can_be_run() -> None:
    """CI's scripts are executable and stop at the first failure."""
    for name in ("run", "lint", "plugins", "sanitize"):
        path = ROOT / ".ci" / name
        assert os.access(path, os.X_OK)
        assert "set -euo pipefail" in path.read_text("utf-8")


def test_no_index_host_and_no_path_of_a_machine_is_named() -> None:
    """Where packages come from is the user's setting, and no path is our machine's."""
    banned = re.compile("|".join((*_HOSTS, *_MACHINE)))
    found = []
    for path in project_files():
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{place(path)}: {match[0]}" for match in banned.finditer(text)]
    assert not found


def test_every_pinned_distribution_is_within_the_ranges() -> None:
    """constraints.txt pins each direct dependency once and to one version."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    pinned = [pin.partition("==")[0].replace("_", "-").lower() for pin in pins]
    assert len(pinned) == len(set(pinned))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *chain.from_iterable(extras.values())]
    names = {
        re.split(r"[\[<>=!~; ]", line)[0].replace("_", "-").lower() for line in wanted
    }
    assert names - {project["name"]} <= set(pinned)


def test_pre_commit_runs_what_ci_runs() -> None:
    """Both call the same script, and the hooks cover all of its checks."""
    hooks = (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
    script = (ROOT / ".ci" / "lint").read_text("utf-8")
    checks = re.findall(r"^        (\w+)\) ", script, re.MULTILINE)
    assert checks == re.findall(r"entry: \.ci/lint (\w+)", hooks)
    # CI checks documents too; a hook that ran for Python files alone would not.
    assert hooks.count("always_run: true") == len(checks)
    assert "\n.ci/lint\n" in (ROOT / ".ci" / "run").read_text("utf-8")


def test_ci_runs_the_sanitizers_over_every_kernel_test() -> None:
    """A new file of kernel tests, which all use the stand, is not left out."""
    folder = ROOT / "tests" / "backends"
    names = {
        path.stem.removeprefix("test_cpu_")
        for path in folder.glob("test_cpu_*.py")
        if "tests.backends.kernel_stand import" in path.read_text("utf-8")
    }
    script = (ROOT / ".ci" / "sanitize").read_text("utf-8")
    (listed,) = re.findall(r"test_cpu_\{([\w,]+)\}\.py", script)
    assert set(listed.split(",")) == names
    assert "\n.ci/sanitize\n" in (ROOT / ".ci" / "run").read_text("utf-8")


def test_ci_runs_the_readmes_own_test_command() -> None:
    """The line that a newcomer copies is what CI runs, part by part and in order."""
    page = (ROOT / "README.md").read_text("utf-8")
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    (line,) = set(re.findall(r"pip install [^\n`]*\[dev\][^\n`]*", page))
    places = [script.find(part.strip()) for part in line.split("&&")]
    assert -1 not in places
    assert places == sorted(places)
