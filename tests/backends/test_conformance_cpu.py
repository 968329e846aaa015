"""The cpu executor passes the conformance kit, exact and rounded."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from hybrid.backends.cpu.executor import CpuExecutor
from hybrid.backends.cpu.native_runner import NativeRunner
from hybrid.testing import (
    Answer,
    ExecutorCase,
    ExecutorConformance,
    LoadedExecutor,
    TokenIds,
    recomputed_answers,
)
from hybrid.testing.bench import Bench
from hybrid.testing.correctness import CorrectnessTests
from hybrid.testing.sharing import SharingTests


class KernelCase(ExecutorCase):
    """In our own kernels, on more threads than one."""

    executor = "cpu"
    num_threads: ClassVar[int | None] = 2

    def test_the_kernels_answered(self, every_bench: Bench) -> None:
        """What passes the kit here is no stand-in."""
        executor = every_bench.loaded.executor
        assert isinstance(executor, CpuExecutor)
        assert isinstance(executor._runner, NativeRunner)


class TestCpu(KernelCase, ExecutorConformance):
    """In float32, against transformers' own tokens."""


class RoundedCase(KernelCase):
    """What is rounded answers in every setting as one prefill after another does.

    To the bit: the order of no sum depends on batch, chunk or cache.
    """

    architectures: ClassVar[Sequence[str]] = ("mistral",)
    block_sizes: ClassVar[Sequence[int] | None] = (16,)
    dtype: ClassVar[str] = "bfloat16"

    def reference(
        self, loaded: LoadedExecutor, prompts: Sequence[TokenIds], num_tokens: int
    ) -> list[Answer]:
        """Ask the executor itself, of one sequence at a time."""
        return recomputed_answers(loaded, prompts, num_tokens)


class TestCpuInt8(RoundedCase, ExecutorConformance):
    """8-bit weights over a cache of 8 bits, whose cells no layout describes."""

    dtype_tolerances: ClassVar[Mapping[str, float]] = {"float32": 12.0, "float16": 12.0}
    """There the weights are those of the checkpoint."""


class TestCpuInt4(RoundedCase, CorrectnessTests, SharingTests):
    """4-bit weights over a cache in bfloat16."""

    executor_options: ClassVar[Mapping[str, Any]] = {
        "quantization": "int4",
        "kv_cache_dtype": "bfloat16",
    }


class TestCpuBfloat16(RoundedCase, CorrectnessTests, SharingTests):
    """16-bit weights."""

    executor_options: ClassVar[Mapping[str, Any]] = {"quantization": "bf16"}
