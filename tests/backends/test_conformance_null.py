"""The null executor passes the conformance kit, as do a rounding and a plain one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from hybrid.backends.interface import Capabilities, ForwardResult
from hybrid.backends.null.executor import NullExecutor
from hybrid.scheduler import StepPlan
from hybrid.testing import ExecutorConformance


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


class NoisyExecutor(NullExecutor):
    """Sums in an order that the batch decides, as fast kernels do."""

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Move the logits by no more than a hundredth."""
        logits = np.from_dlpack(super().execute(plan).logits)
        waves = np.cos(np.arange(logits.shape[1]) + len(plan.scheduled))
        return ForwardResult((logits + 0.01 * waves).astype(np.float32))


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
