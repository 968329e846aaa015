"""The engine's conformance kit, run against OpenVINO."""

from collections.abc import Mapping
from typing import Any, ClassVar

from hybrid.testing import ARCHITECTURES, ExecutorConformance


class TestExact(ExecutorConformance):
    """In float32, weights and cache too: transformers' tokens, one by one."""

    executor = "openvino"
    num_threads: ClassVar[int | None] = 1
    architectures = (*ARCHITECTURES, "phi3")


class TestQuantizedCache(ExecutorConformance):
    """With OpenVINO's own u8 cache, whose rounding moves logits by a few units.

    The tiny models' logits are twentyfold, so that their margins are as well.
    """

    executor = "openvino"
    executor_options: ClassVar[Mapping[str, Any]] = {"KV_CACHE_PRECISION": "u8"}
    num_threads: ClassVar[int | None] = 1
    architectures = ("llama",)
    logit_tolerance = 12.0
