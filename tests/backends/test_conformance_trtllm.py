"""The tensorrt_llm executor with attention in plain torch passes the kit."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from hybrid.testing import (
    ARCHITECTURES,
    Answer,
    ExecutorConformance,
    LoadedExecutor,
    TokenIds,
    transformers_answers,
)
from tests.backends.rounded_cache import ROUNDED, register


class TestTrtllmTorch(ExecutorConformance):
    """On the CPU, where nothing else can attend."""

    executor = "tensorrt_llm"
    device: ClassVar[str | None] = "cpu"
    num_threads: ClassVar[int | None] = 1
    executor_options: ClassVar[Mapping[str, Any]] = {"attention": "torch"}


class TestTrtllmFloat8Cache(TestTrtllmTorch):
    """A cache of 8-bit floats: transformers' answers over as coarse K and V."""

    architectures: ClassVar[Sequence[str]] = ARCHITECTURES[:1]
    block_sizes: ClassVar[Sequence[int] | None] = (16,)
    executor_options: ClassVar[Mapping[str, Any]] = {
        "attention": "torch",
        "kv_dtype": "float8_e4m3fn",
    }
    logit_tolerance: ClassVar[float] = 4.0
    """A number between two 8-bit floats may fall to either side."""

    def reference(
        self, loaded: LoadedExecutor, prompts: Sequence[TokenIds], num_tokens: int
    ) -> list[Answer]:
        """Ask transformers, its K and V rounded."""
        register()
        assert loaded.source is not None
        folder = loaded.source.path
        return transformers_answers(
            folder, prompts, num_tokens, attn_implementation=ROUNDED
        )


@pytest.mark.gpu
class TestTrtllmCuda(ExecutorConformance):
    """On a GPU, with whichever attention the probe finds there."""

    executor = "tensorrt_llm"
    device: ClassVar[str | None] = "cuda"
    block_sizes: ClassVar[Sequence[int] | None] = (16, 64)
