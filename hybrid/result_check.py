"""Holds what came out of a step against the plan and what the executor has declared."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hybrid.backends.interface import Capabilities, ForwardResult
from hybrid.scheduler import ExecutorFailed, StepPlan
from hybrid.scheduler.shown_value import shown

from .sampler.logits_array import logits_array

_FLOAT32: Final = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class ResultCheck:
    """What every result of one executor must be; the sampler takes it unseen."""

    capabilities: Capabilities
    vocab_size: int
    """Columns of the logits."""
    num_ids: int
    """Ids that a tokenizer knows: those below it."""

    def run(self, plan: StepPlan, result: object) -> ForwardResult:
        """Check kind, shape, dtype and range; the sampler looks for values not finite.

        Returns:
            The result.

        Raises:
            ExecutorFailed: says what is wrong with it.
        """
        if not isinstance(result, ForwardResult):
            raise ExecutorFailed(
                f"execute gave a {type(result).__name__}, must give a ForwardResult"
            )
        logits, tokens = result.logits, result.sampled_token_ids
        if self.capabilities.returns_logits:
            if tokens is not None:
                raise ExecutorFailed(
                    "it declares returns_logits=True and returned tokens"
                )
            num_rows = sum([entry.num_logits_rows for entry in plan.scheduled])
            likeliest = result.likeliest_ids
            if logits is not None or plan.needs_logits or likeliest is None:
                self._check_logits(num_rows, logits)
            if likeliest is not None:
                self._check_likeliest(num_rows, likeliest)
        elif logits is not None or tokens is None:
            found = "no tokens" if logits is None else "logits"
            raise ExecutorFailed(
                f"it declares returns_logits=False and returned {found}"
            )
        else:
            self._check_tokens(plan, tokens)
        return result

    def can_draw(self, result: ForwardResult) -> bool:
        """Whether a checked result names for every row an id that can be drawn.

        True of one without rows, too.
        """
        likeliest = result.likeliest_ids or (0,)
        return min(likeliest) >= 0 and max(likeliest) < self.num_ids

    def _check_logits(self, num_rows: int, logits: Any) -> None:
        if logits is None:
            if num_rows:
                raise ExecutorFailed(f"it returned no logits, {num_rows} rows wanted")
            return
        wanted = (num_rows, self.vocab_size)
        array = logits_array(logits)
        if array.shape != wanted or array.dtype != _FLOAT32:
            raise ExecutorFailed(
                f"it returned {array.dtype} logits of shape {array.shape}, wanted "
                f"float32 of shape {wanted}"
            )

    def _check_likeliest(self, num_rows: int, likeliest: Sequence[int]) -> None:
        """Hold the ids against the columns; which of them is highest is its word."""
        if len(likeliest) != num_rows:
            raise ExecutorFailed(
                f"it named {len(likeliest)} likeliest ids, {num_rows} rows wanted"
            )
        for token_id in likeliest:
            if type(token_id) is not int or not -1 <= token_id < self.vocab_size:
                raise ExecutorFailed(
                    f"it named {shown(token_id)} as a likeliest id, must be one below "
                    f"{self.vocab_size}, or -1"
                )

    def _check_tokens(self, plan: StepPlan, sampled: Sequence[Sequence[int]]) -> None:
        if len(sampled) != len(plan.scheduled):
            raise ExecutorFailed(
                f"it sampled for {len(sampled)} entries, the plan has "
                f"{len(plan.scheduled)}"
            )
        for entry, token_ids in zip(plan.scheduled, sampled, strict=True):
            name = f"request {entry.request.request_id!r}"
            most = entry.num_samples + entry.num_draft_tokens
            if not entry.num_samples <= len(token_ids) <= most:
                raise ExecutorFailed(
                    f"{name}: it sampled {len(token_ids)} tokens, the plan wants "
                    f"{entry.num_samples}"
                )
            for token_id in token_ids:
                if type(token_id) is not int or not 0 <= token_id < self.num_ids:
                    raise ExecutorFailed(
                        f"{name}: it sampled {shown(token_id)}, must be an id below "
                        f"{self.num_ids}"
                    )
