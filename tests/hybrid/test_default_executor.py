"""What ``executor="auto"`` stands for depends on the machine alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from hybrid.default_executor import DEVICE_NODES, default_executor


def _never_asked() -> bool:
    raise AssertionError("asked, although there is no driver")


def test_without_a_driver_it_is_cpu_and_nobody_is_asked(tmp_path: Path) -> None:
    """Where no device node exists torch need not be imported."""
    assert default_executor((tmp_path / "nvidiactl",), _never_asked) == "cpu"


@pytest.mark.parametrize(("answer", "name"), [(True, "torch"), (False, "cpu")])
def test_with_a_driver_it_depends_on_what_torch_finds(
    tmp_path: Path, name: str, *, answer: bool
) -> None:
    """A driver without a device, or a torch without CUDA, leaves the CPU."""
    node = tmp_path / "nvidiactl"
    node.touch()
    missing = tmp_path / "dxg"
    assert default_executor((missing, node), lambda: answer) == name


def test_every_driver_of_what_torch_calls_cuda_is_known() -> None:
    """NVIDIA's on Linux, Windows and Tegra; AMD's, for torch built for ROCm."""
    names = {node.name for node in DEVICE_NODES}
    assert names == {"nvidiactl", "dxg", "nvmap", "kfd"}


def test_finding_out_imports_no_torch_where_there_is_no_driver() -> None:
    """It costs a start nothing."""
    code = (
        "import sys; from hybrid.default_executor import default_executor;"
        "default_executor(()); print('torch' in sys.modules)"
    )
    run = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "False"
