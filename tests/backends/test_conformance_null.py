"""The null executor passes the conformance kit, as do a rounding and a plain one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from hybrid.backends.checkpoint.model_source import ModelSource
from hybrid.backends.interface import (
    Capabilities,
    ExecutorConfig,
    ForwardResult,
    ModelInfo,
    ProgressCallback,
)
from hybrid.backends.null.executor import NullExecutor
from hybrid.scheduler import StepPlan
from hybrid.testing import ExecutorConformance
from tests.backends.sampling_executors import SelfSampling


class PlainExecutor(NullExecutor):
    """Whole prompts, own blocks, one token of its own choice: nothing optional."""

    def capabilities(self) -> Capabilities:
        """Declare as little as there is."""
        return replace(
            super().capabilities(),
            name="plain",
            block_sizes=(4, 16),
            returns_logits=False,
            prefix_reuse=False,
            chunked_prefill=False,
            block_copy=False,
            prompt_logprobs=False,
        )

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Take the likeliest token; insist on what was not declared."""
        assert not plan.block_copies
        for entry in plan.scheduled[: plan.num_contexts]:
            assert entry.num_computed_tokens == 0
            assert entry.num_logits_rows == entry.num_samples == 1
        logits = np.from_dlpack(super().execute(plan).logits)
        return ForwardResult(
            sampled_token_ids=tuple((int(row.argmax()),) for row in logits)
        )


class AlignedExecutor(NullExecutor):
    """Continues a prompt from a block boundary only."""

    def capabilities(self) -> Capabilities:
        """Declare the need."""
        return replace(
            super().capabilities(),
            name="aligned",
            block_sizes=(4, 16),
            aligned_chunks=True,
        )

    def load(
        self,
        model: ModelSource | None,
        config: ExecutorConfig,
        progress: ProgressCallback | None = None,
    ) -> ModelInfo:
        """Remember what a boundary is."""
        self._block_size = config.block_size
        return super().load(model, config, progress)

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Insist on the need."""
        for entry in plan.scheduled:
            end = entry.num_computed_tokens + len(entry.token_ids)
            assert entry.num_samples or end % self._block_size == 0
        return super().execute(plan)


class NoisyExecutor(NullExecutor):
    """Sums in an order that the batch decides, as fast kernels do."""

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Move the logits by no more than a hundredth."""
        logits = np.from_dlpack(super().execute(plan).logits)
        waves = np.cos(np.arange(logits.shape[1]) + len(plan.scheduled))
        return ForwardResult((logits + 0.01 * waves).astype(np.float32))


class CountedExecutor(NullExecutor):
    """Knows how many were made and not closed."""

    num_open: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self._is_open = True
        type(self).num_open += 1

    def close(self) -> None:
        """Count the first call."""
        super().close()
        type(self).num_open -= self._is_open
        self._is_open = False


class TestNull(ExecutorConformance):
    """Everything that it declares: every block size, chunks, copies, log-probs."""

    executor = "null"


class TestNoisy(ExecutorConformance):
    """A tolerance lets close calls fall either way, and nothing else."""

    executor = NoisyExecutor
    executor_options: ClassVar[Mapping[str, Any]] = {"vocab_size": 16}
    architectures = ()
    block_sizes: ClassVar[Sequence[int] | None] = (4,)
    logit_tolerance = 0.02


class TestPlain(ExecutorConformance):
    """What is not declared is never asked for; the rest is held to all the same."""

    executor = PlainExecutor
    architectures = ()


class TestAligned(ExecutorConformance):
    """No limit on chunks cuts a prompt within a block."""

    executor = AlignedExecutor
    architectures = ()


class TestCounted(ExecutorConformance):
    """The kit closes every executor that it makes."""

    executor = CountedExecutor
    architectures = ()
    block_sizes: ClassVar[Sequence[int] | None] = (4,)

    @pytest.fixture(scope="class", autouse=True)
    @staticmethod
    def _all_closed() -> Iterator[None]:
        """None is open once the class has run, the collection included."""
        yield
        assert CountedExecutor.num_open == 0


class TestSelfSampling(ExecutorConformance):
    """Every sampling field shows where it is honoured."""

    executor = SelfSampling
    architectures = ()
    block_sizes: ClassVar[Sequence[int] | None] = (4,)
