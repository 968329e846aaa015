"""Executors that compute one thing wrongly: what the conformance kit is to notice."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.interface import ForwardResult
from hybrid.backends.null.executor import NullExecutor
from hybrid.scheduler import ScheduledRequest, StepPlan

Logits = NDArray[np.float32]


class NoCopies(NullExecutor):
    """Ignores block copies."""

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Leave them out."""
        return super().execute(replace(plan, block_copies=()))


class ReversedCopies(NullExecutor):
    """Copies in the wrong order."""

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Turn them round."""
        return super().execute(replace(plan, block_copies=plan.block_copies[::-1]))


class CopiesAtOnce(NullExecutor):
    """Gathers all sources, then scatters: no chain of copies."""

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Copy as one indexed assignment does."""
        blocks = self._cache.reshape(-1, self._config.block_size, 2)
        if plan.block_copies:
            sources, targets = zip(*plan.block_copies, strict=True)
            blocks[list(targets)] = blocks[list(sources)]
        return super().execute(replace(plan, block_copies=()))


class Edited(NullExecutor):
    """Runs each entry as ``edit`` changes it."""

    def edit(self, entry: ScheduledRequest) -> ScheduledRequest:
        """Change one entry."""
        raise NotImplementedError

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Run the changed plan."""
        scheduled = tuple(map(self.edit, plan.scheduled))
        return super().execute(replace(plan, scheduled=scheduled))


class LostSlots(NullExecutor):
    """Writes the last token of each block beside it: only that step still sees it."""

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Overwrite what was written there."""
        result = super().execute(plan)
        size = self._config.block_size
        for entry in plan.scheduled:
            start = entry.num_computed_tokens
            for position in range(start, start + len(entry.token_ids)):
                if position % size == size - 1:
                    block = entry.block_ids[position // size]
                    self._cache[block * size + size - 1, 0] = 0
        return result


class StaleTables(Edited):
    """Believes that a sequence's blocks never change: a preemption moves them."""

    def __init__(self) -> None:
        super().__init__()
        self._tables: dict[object, tuple[int, ...]] = {}

    def edit(self, entry: ScheduledRequest) -> ScheduledRequest:
        """Extend the table of old."""
        old = self._tables.get(entry.key, ())
        table = old + entry.block_ids[len(old) :]
        self._tables[entry.key] = table
        return entry._replace(block_ids=table)


class ChunksFromZero(Edited):
    """Takes every part of a prompt for its beginning."""

    def edit(self, entry: ScheduledRequest) -> ScheduledRequest:
        """Forget what is computed, in chunks alone."""
        if len(entry.token_ids) == 1:
            return entry
        return entry._replace(num_computed_tokens=0)


class EmptyPrefixes(NullExecutor):
    """Computes a cached prefix as if it were zeros."""

    def __init__(self) -> None:
        super().__init__()
        self._known: set[str] = set()

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Clear what a new request finds in its blocks."""
        size = self._config.block_size
        for entry in plan.scheduled:
            if entry.request.request_id not in self._known:
                self._known.add(entry.request.request_id)
                for position in range(entry.num_computed_tokens):
                    block = entry.block_ids[position // size]
                    self._cache[block * size + position % size, 0] = 0
        return super().execute(plan)


class Edits(NullExecutor):
    """Returns logits as ``change`` makes them."""

    def change(self, plan: StepPlan, logits: Logits) -> NDArray[Any]:
        """Make other logits."""
        raise NotImplementedError

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Run the plan."""
        logits: Logits = np.from_dlpack(super().execute(plan).logits).copy()
        return ForwardResult(self.change(plan, logits))


class SwappedRows(Edits):
    """Gives generations' rows before contexts'."""

    def change(self, plan: StepPlan, logits: Logits) -> Logits:
        """Turn at the border."""
        entries = plan.scheduled[: plan.num_contexts]
        return np.roll(logits, -sum(e.num_logits_rows for e in entries), axis=0)


class CrossTalk(Edits):
    """Lets the batch's size show in its last row."""

    def change(self, plan: StepPlan, logits: Logits) -> Logits:
        """Shift the ids of one row."""
        if len(logits):
            logits[-1] = np.roll(logits[-1], len(plan.scheduled) - 1)
        return logits


class Forgetful(Edits):
    """Answers otherwise every time."""

    def __init__(self) -> None:
        super().__init__()
        self._num_calls = 0

    def change(self, plan: StepPlan, logits: Logits) -> Logits:
        """Shift the ids by the number of calls."""
        del plan
        self._num_calls += 1
        return np.roll(logits, self._num_calls, axis=1)


class OneRowTooMany(Edits):
    """Returns a row that nobody asked for."""

    def change(self, plan: StepPlan, logits: Logits) -> Logits:
        """Append one."""
        del plan
        return np.concatenate([logits, logits[:1]])


class DoubleLogits(Edits):
    """Returns float64."""

    def change(self, plan: StepPlan, logits: Logits) -> NDArray[np.float64]:
        """Widen them."""
        del plan
        return logits.astype(np.float64)


class WrongAlone(NullExecutor):
    """Names the second-likeliest ids where nobody needs logits."""

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Look for them in what it leaves out."""
        result = super().execute(plan)
        if plan.needs_logits:
            return result
        logits: Logits = np.from_dlpack(result.logits)  # type: ignore[arg-type]
        second = logits.argsort(axis=1)[:, -2]
        return ForwardResult(likeliest_ids=second.tolist())


class LastRowOnly(Edits):
    """Declares prompt log-probabilities and repeats the last row for them."""

    def change(self, plan: StepPlan, logits: Logits) -> Logits:
        """Copy each entry's last row over its others."""
        start = 0
        for entry in plan.scheduled:
            end = start + entry.num_logits_rows
            logits[start:end] = logits[end - 1 : end]
            start = end
        return logits
