"""On a device: checks of memory hold, and exchanges that would race are refused."""

from pathlib import Path

import pytest
import torch

from hybrid.bridge.zero_copy import ArrayView, same_stream, to_cupy, to_torch
from hybrid.scheduler import ConfigError
from tests.gpu.device_check import Check, Setting
from tests.gpu.memory_checks import (
    check_addresses,
    check_kv_scatter,
    check_zero_copy,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("check", [check_zero_copy, check_addresses, check_kv_scatter])
def test_a_check_of_memory_holds(check: Check, tmp_path: Path) -> None:
    """Those of the device report, with the failing line in sight."""
    assert check(Setting("cuda", tmp_path))


def test_another_stream_is_refused_both_ways() -> None:
    """CuPy would work on its own current stream, beside torch's."""
    cupy = pytest.importorskip("cupy")
    tensor = torch.zeros(1, device="cuda")
    array = cupy.zeros(1, dtype=cupy.float32)
    with torch.cuda.stream(torch.cuda.Stream()):
        with pytest.raises(ConfigError, match="exchange within same_stream"):
            to_cupy(tensor)
        with pytest.raises(ConfigError, match="exchange within same_stream"):
            to_torch(ArrayView(array, "float32"))
        with same_stream(tensor):
            assert to_cupy(tensor).array.data.ptr == tensor.data_ptr()


def test_an_exchange_within_a_capture_is_refused() -> None:
    """It would wait for another stream, which no graph can hold."""
    pytest.importorskip("cupy")
    tensor = torch.zeros(1, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        tensor.add_(1)
        with (
            same_stream(tensor),
            pytest.raises(ConfigError, match="being captured; exchange before"),
        ):
            to_cupy(tensor)
