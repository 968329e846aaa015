"""The kernels' team of threads, in schedules that a quiet machine would never show."""

import subprocess
from pathlib import Path

import pytest

from tests.compiler import find_compiler
from tests.source_tree import ROOT


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The team with pauses around its atomic operations, compiled."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    target = tmp_path_factory.mktemp("team") / "team_delays"
    command = [compiler, "-std=c++20", "-O1", "-pthread"]
    command += ["-I", str(ROOT / "backends" / "cpu" / "native")]
    source = Path(__file__).with_name("team_delays.cpp")
    subprocess.run(  # noqa: S603 - found above
        [*command, str(source), "-o", str(target)], check=True
    )
    return target


@pytest.mark.parametrize("num_threads", [1, 2, 3, 4])
def test_a_thread_may_be_overtaken_anywhere(program: Path, num_threads: int) -> None:
    """Every unit runs once, in its stage, and every job ends."""
    run = subprocess.run(  # noqa: S603 - compiled above
        [str(program), str(num_threads)],
        timeout=120,
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout
