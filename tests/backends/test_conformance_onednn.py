"""The oneDNN fallback of executor ``cpu`` passes the kit."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from hybrid.backends.interface import Capabilities
from hybrid.testing import (
    Answer,
    ExecutorConformance,
    LoadedExecutor,
    TokenIds,
    recomputed_answers,
)
from tests.backends.onednn_stand import OneDNNExecutor, needs_int8


class TestOneDNNFloats(ExecutorConformance):
    """Exact in float32; in bfloat16 its weights are of 8 bits."""

    executor = OneDNNExecutor
    num_threads: ClassVar[int | None] = 1


class Float32Weights(OneDNNExecutor):
    """Rounded once: to 8 bits, not to bfloat16 before."""

    def capabilities(self) -> Capabilities:
        """See ``Executor``."""
        return replace(
            super().capabilities(),
            dtypes=("float32",),
            fast_dtypes={"cpu": ("float32",)},
        )


@needs_int8
class TestOneDNNInt8(TestOneDNNFloats):
    """Products of 8 bits: however the work is cut up, as each token by itself."""

    executor = Float32Weights
    architectures: ClassVar[Sequence[str]] = ("llama", "qwen2")
    block_sizes: ClassVar[Sequence[int] | None] = (16,)
    executor_options: ClassVar[Mapping[str, Any]] = {
        "quantization": "int8",
        "kv_cache_dtype": "float32",
    }
    logit_tolerance: ClassVar[float] = 2.0
    """Attention rounds otherwise in another batch, and an activation between two steps
    of 8 bits may fall to either side."""

    def reference(
        self, loaded: LoadedExecutor, prompts: Sequence[TokenIds], num_tokens: int
    ) -> list[Answer]:
        """Ask the executor itself: the random models' answers are another in 8 bits."""
        return recomputed_answers(loaded, prompts, num_tokens)
