"""One engine's calls of its executor: what a step asks for, and what comes of it.

Logits are many numbers, and a step of greedy requests needs none of them but one index
a row. Only the sampler knows that, after the scheduler has made the plan: the executor
gets a copy that says so.
"""

from dataclasses import replace
from typing import Final

from hybrid.backends.interface import Capabilities, Executor, ForwardResult
from hybrid.scheduler import StepPlan

from .result_check import ResultCheck
from .sampler.sampler import Sampler


class ForwardPass:
    """Runs plans; results are those that the sampler can draw from."""

    def __init__(self, executor: Executor, can: Capabilities, sampler: Sampler) -> None:
        """``can`` is what ``executor`` declares, ``sampler`` who draws."""
        self._executor: Final = executor
        self._returns_logits: Final = can.returns_logits
        self._sampler: Final = sampler
        self._check: Final = ResultCheck(can, sampler.vocab_size, sampler.num_ids)

    def ask(self, plan: StepPlan) -> StepPlan:
        """Say in a plan what is wanted of the step; to be run and sampled as it is."""
        if self._returns_logits and self._sampler.wants_likeliest(plan):
            return replace(plan, needs_logits=False)
        return plan

    def run(self, plan: StepPlan) -> ForwardResult:
        """Execute a plan and check what came out of it.

        Raises:
            ExecutorFailed: it does not fit the plan, or what was declared.
        """
        result = self._check.run(plan, self._executor.execute(plan))
        if result.logits is None and not self._check.can_draw(result):
            # A row whose highest is uncertain, or no id of the tokenizer's: seldom, so
            # that it may take a step. The same K and V are written over themselves; a
            # copy done twice would read what another has put in its source's place.
            again = replace(
                plan, needs_logits=True, block_copies=(), finished=(), preempted=()
            )
            result = self._check.run(again, self._executor.execute(again))
        return result
