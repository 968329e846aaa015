"""What a user installs: built from a copy of the tree, without a network."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from tests.compiler import find_compiler
from tests.source_tree import PACKAGE_FOLDERS, PLUGINS, ROOMS, ROOT, python_files

_BESIDES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "tests", PLUGINS)


def build(kind: str, source: Path, target: Path) -> Path:
    """Build a wheel or an sdist with the tools that are installed."""
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation"]
    compiler = find_compiler()
    environment = dict(os.environ)
    if compiler is not None:
        # Without optimisation, which takes most of the time and changes no name.
        quick = target.parent / f"{target.name}-compiler"
        quick.write_text(f'#!/bin/sh\nexec {compiler} "$@" -O0\n', "utf-8")
        quick.chmod(0o755)
        environment["CXX"] = str(quick)
    run = subprocess.run(  # noqa: S603 - our own interpreter
        [*command, "--outdir", str(target), str(source)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    (built,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, links kept, that a build may write into."""
    copy = tmp_path_factory.mktemp("tree") / "project"
    copy.mkdir()
    for name in (*_BESIDES, *PACKAGE_FOLDERS):
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
            shutil.copytree(source, copy / name, symlinks=True, ignore=ignored)
        elif source.exists():
            shutil.copy(source, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel_names(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the files in a wheel that was built from the checkout."""
    built = build("wheel", tree, tmp_path_factory.mktemp("wheel"))
    with zipfile.ZipFile(built) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def expected_names() -> set[str]:
    """Name the package's modules and its kernels as they lie in a wheel."""
    names = {"hybrid/py.typed"}
    if find_compiler() is not None:
        names.add(f"hybrid/backends/cpu/_kernels{EXTENSION_SUFFIXES[0]}")
    for path in python_files(*PACKAGE_FOLDERS):
        inside = path.relative_to(ROOT).as_posix()
        top = inside.partition("/")[0]
        names.add(f"hybrid/{inside}" if top in ROOMS else inside)
    return names


def test_wheel_has_one_top_level_name(wheel_names: set[str]) -> None:
    """Installing takes no name but ``hybrid``: no room, no test, no plugin."""
    assert {name.partition("/")[0] for name in wheel_names} == {"hybrid"}


def test_wheel_holds_every_module_of_every_room(wheel_names: set[str]) -> None:
    """The linked rooms are inside, with py.typed, and nothing else is."""
    assert wheel_names == expected_names()


def test_sdist_builds_the_same_wheel(
    tree: Path, tmp_path: Path, wheel_names: set[str]
) -> None:
    """Whoever builds from the source archive gets what the checkout gives."""
    for folder in ("sdist", "unpacked", "wheel"):
        (tmp_path / folder).mkdir()
    with tarfile.open(build("sdist", tree, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    with zipfile.ZipFile(build("wheel", source, tmp_path / "wheel")) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == wheel_names
