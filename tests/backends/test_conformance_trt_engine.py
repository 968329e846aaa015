"""The tensorrt_llm executor over a compiled engine passes the conformance kit.

The engine is a stand-in: it refuses what TensorRT and its attention plugin would, and
follows addresses as they do.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import Capabilities, Executor
from hybrid.backends.trtllm.executor import TrtllmExecutor
from hybrid.testing import (
    Answer,
    ExecutorConformance,
    LoadedExecutor,
    TokenIds,
    transformers_answers,
)
from hybrid.testing.models import write_tiny_model
from tests.backends.standin_engine import build_standin_engine
from tests.backends.standin_session import installed_runtime
from tests.backends.trt_engine_stand import HERE


class EngineExecutor(TrtllmExecutor):
    """Declares the dtype of one engine: it is compiled in."""

    def __init__(self, dtype: str) -> None:
        super().__init__(HERE)
        self._dtype = dtype

    def capabilities(self) -> Capabilities:
        """As those of the executor."""
        return replace(
            super().capabilities(),
            dtypes=(self._dtype,),
            fast_dtypes={"cpu": (self._dtype,)},
        )


class TestEngine(ExecutorConformance):
    """One that gives logits of every token, as prompt logprobs need."""

    executor: ClassVar[type[Executor]] = TrtllmExecutor
    architectures: ClassVar[Sequence[str]] = ("llama", "qwen2", "qwen3")
    block_sizes: ClassVar[Sequence[int] | None] = (32,)
    device: ClassVar[str | None] = "cpu"
    num_threads: ClassVar[int | None] = 1
    build: ClassVar[Mapping[str, Any]] = {"gather_context_logits": True}

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _installed(cls) -> Iterator[None]:
        with installed_runtime():
            yield

    def make_executor(self) -> Executor:
        """Make one for a machine whose compiled kernels run on the CPU."""
        return EngineExecutor(self.dtype)

    def write_model(self, folder: Path, architecture: str) -> ModelSource:
        """Build an engine of a tiny model."""
        weights = write_tiny_model(folder / "weights", architecture)
        build = {"dtype": self.dtype, **self.build}
        engine = build_standin_engine(weights, folder / "engine", **build)
        return ModelSource(architecture, engine, CheckpointFormat.COMPILED)

    def reference(
        self, loaded: LoadedExecutor, prompts: Sequence[TokenIds], num_tokens: int
    ) -> list[Answer]:
        """Ask transformers of the weights that the engine was built from."""
        assert loaded.source is not None
        weights = loaded.source.path.parent / "weights"
        return transformers_answers(weights, prompts, num_tokens)


class TestEngineLastRows(TestEngine):
    """One that gives a row of each sequence, in blocks of another size."""

    architectures: ClassVar[Sequence[str]] = ("llama",)
    block_sizes: ClassVar[Sequence[int] | None] = (64,)
    build: ClassVar[Mapping[str, Any]] = {"tokens_per_block": 64}


class TestEngineBfloat16(TestEngine):
    """In the dtype that engines are mostly built for."""

    architectures: ClassVar[Sequence[str]] = ("llama",)
    dtype: ClassVar[str] = "bfloat16"
