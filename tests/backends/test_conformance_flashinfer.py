"""The executor over FlashInfer's kernels, stood in for, passes the kit."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import Executor
from hybrid.backends.trtllm import flashinfer_refusal
from hybrid.backends.trtllm.executor import TrtllmExecutor
from hybrid.backends.trtllm.machine import Machine
from hybrid.testing import ARCHITECTURES, ExecutorConformance
from hybrid.testing.models import write_tiny_model
from tests.backends.standin_flashinfer import installed

HOPPER, BLACKWELL = (9, 0), (10, 0)


class HopperExecutor(TrtllmExecutor):
    """On a machine where Hopper's kernels run on the CPU."""

    def __init__(self) -> None:
        super().__init__(Machine(("cpu",), HOPPER, kernel_device="cpu"))


class BlackwellExecutor(TrtllmExecutor):
    """On a machine where Blackwell's kernels run on the CPU."""

    def __init__(self) -> None:
        super().__init__(Machine(("cpu",), BLACKWELL, kernel_device="cpu"))


class _FlashInferConformance(ExecutorConformance):
    """Token for token in float32, which the stand-in takes and no real kernel does."""

    num_threads: ClassVar[int | None] = 1
    executor_options: ClassVar[Mapping[str, Any]] = {"attention": "flashinfer"}
    capability: ClassVar[tuple[int, int]]

    def write_model(self, folder: Path, architecture: str) -> ModelSource:
        """Heads of 64: smaller ones have no kernels everywhere."""
        write_tiny_model(folder, architecture, head_dim=64)
        return ModelSource(architecture, folder, CheckpointFormat.HF_DIRECTORY)

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def package(cls) -> Iterator[None]:
        """The stand-in, for as long as the executor lives; it was called."""
        floats = (*flashinfer_refusal.DTYPES, "float32")
        with (
            pytest.MonkeyPatch.context() as patch,
            installed(cls.capability, allows_float32=True) as stand_in,
        ):
            patch.setattr(flashinfer_refusal, "DTYPES", floats)
            yield
            assert len({name for name, _ in stand_in.calls}) == 2


class TestFlashInferHopper(_FlashInferConformance):
    """XQA and FMHA v2, a sliding window among the models."""

    executor: ClassVar[str | type[Executor]] = HopperExecutor
    capability: ClassVar[tuple[int, int]] = HOPPER
    architectures: ClassVar[Sequence[str]] = ARCHITECTURES
    block_sizes: ClassVar[Sequence[int] | None] = (16, 64)


class TestFlashInferBlackwell(_FlashInferConformance):
    """Decode and prefill by trtllm-gen."""

    executor: ClassVar[str | type[Executor]] = BlackwellExecutor
    capability: ClassVar[tuple[int, int]] = BLACKWELL
    architectures: ClassVar[Sequence[str]] = ("llama", "mistral")
    block_sizes: ClassVar[Sequence[int] | None] = (32,)
