"""The executor over TensorRT-LLM's operator, stood in for, passes the kit.

Without a window: the operator would wrap the cache, so such a model is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from hybrid.backends.interface import Executor
from hybrid.backends.trtllm.executor import TrtllmExecutor
from hybrid.testing import (
    ExecutorConformance,
)
from tests.backends.rounded_cache import RoundedCacheConformance
from tests.backends.thop_stand import MACHINE
from tests.backends.trtllm_standin import installed


class ThopExecutor(TrtllmExecutor):
    """On a machine where the operator runs on the CPU."""

    def __init__(self) -> None:
        super().__init__(MACHINE)


class _ThopConformance(ExecutorConformance):
    """Token for token in float32, over every block size."""

    executor: ClassVar[str | type[Executor]] = ThopExecutor
    architectures: ClassVar[Sequence[str]] = ("llama", "qwen2", "qwen3")
    block_sizes: ClassVar[Sequence[int] | None] = (16, 32, 64)
    num_threads: ClassVar[int | None] = 1
    executor_options: ClassVar[Mapping[str, Any]] = {"attention": "thop"}
    version: ClassVar[str]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def package(cls) -> Iterator[None]:
        """The stand-in, for as long as the executor lives; it was called."""
        with installed(cls.version) as module:
            yield
            assert module.bindings.internal.thop.attention.num_calls > 0


class TestThopByPlace(_ThopConformance):
    """As 1.2 is called."""

    version: ClassVar[str] = "1.2.1"


class TestThopByName(_ThopConformance):
    """As the first form of 2026 is called."""

    version: ClassVar[str] = "1.3.0rc10"
    block_sizes: ClassVar[Sequence[int] | None] = (32,)


class TestThopMid2026(_ThopConformance):
    """As the second form of 2026 is called."""

    version: ClassVar[str] = "1.4.0rc1"
    architectures: ClassVar[Sequence[str]] = ("llama",)
    block_sizes: ClassVar[Sequence[int] | None] = (32,)


class TestThopFloat8Cache(RoundedCacheConformance, _ThopConformance):
    """An 8-bit cache, whose answers are those over as coarse K and V."""

    version: ClassVar[str] = "1.2.1"
    executor_options: ClassVar[Mapping[str, Any]] = {
        "attention": "thop",
        "kv_dtype": "float8_e4m3fn",
    }
