"""The tensorrt_llm executor with attention in plain torch passes the kit."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from hybrid.testing import (
    ExecutorConformance,
)
from tests.backends.rounded_cache import RoundedCacheConformance


class TestTrtllmTorch(ExecutorConformance):
    """On the CPU, where nothing else can attend."""

    executor = "tensorrt_llm"
    device: ClassVar[str | None] = "cpu"
    num_threads: ClassVar[int | None] = 1
    executor_options: ClassVar[Mapping[str, Any]] = {"attention": "torch"}


class TestTrtllmFloat8Cache(RoundedCacheConformance, TestTrtllmTorch):
    """An 8-bit cache, whose answers are those over as coarse K and V."""

    executor_options: ClassVar[Mapping[str, Any]] = {
        "attention": "torch",
        "kv_dtype": "float8_e4m3fn",
        # A power of two: the same numbers are kept.
        "kv_scale": 2.0,
    }


@pytest.mark.gpu
class TestTrtllmCuda(ExecutorConformance):
    """On a GPU, with whichever attention the probe finds there."""

    executor = "tensorrt_llm"
    device: ClassVar[str | None] = "cuda"
    block_sizes: ClassVar[Sequence[int] | None] = (16, 64)
