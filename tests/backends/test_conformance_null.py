"""The null executor passes the conformance kit, and so does one that can less."""

from dataclasses import replace

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


class TestNull(ExecutorConformance):
    """Everything that it declares: every block size, chunks, copies, log-probs."""

    executor = "null"


class TestPlain(ExecutorConformance):
    """What is not declared is never asked for; the rest is held to all the same."""

    executor = PlainExecutor
    architectures = ()
