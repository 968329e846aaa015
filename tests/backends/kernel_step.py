"""One step's arrays, each at the end of its page."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.cpu import abi
from tests.backends.guarded_memory import guarded

_Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class StepArrays:
    """One step; every array ends at a guard page."""

    input_ids: _Array
    positions: _Array
    query_start: _Array
    table_start: _Array
    block_ids: _Array
    logits_rows: _Array = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return len(self.input_ids)

    def struct(
        self, logits: _Array | None = None, likeliest: _Array | None = None
    ) -> abi.Step:
        """Point to the arrays, which must outlive the answer."""
        return abi.Step(
            num_tokens=self.num_tokens,
            num_seqs=len(self.query_start) - 1,
            num_rows=len(self.logits_rows),
            input_ids=self.input_ids.ctypes.data,
            positions=self.positions.ctypes.data,
            query_start=self.query_start.ctypes.data,
            table_start=self.table_start.ctypes.data,
            block_ids=self.block_ids.ctypes.data,
            logits_rows=self.logits_rows.ctypes.data,
            logits=None if logits is None else logits.ctypes.data,
            likeliest=None if likeliest is None else likeliest.ctypes.data,
        )


def make_step(
    sequences: Sequence[tuple[int, int]],
    *,
    block_size: int = 16,
    block_ids: Sequence[int] | None = None,
    input_ids: Sequence[int] | None = None,
    logits_rows: Sequence[int] = (),
) -> StepArrays:
    """Make a step of sequences, each with its tokens before and in this step.

    ``block_ids`` are dealt out in order, as many as the sequences need; ascending from
    1 by default.
    """
    counts = [-(-(computed + new) // block_size) for computed, new in sequences]
    needed = sum(counts)
    if block_ids is None:
        block_ids = range(1, needed + 1)
    news = [new for _, new in sequences]
    positions = [np.arange(computed, computed + new) for computed, new in sequences]
    ids = np.zeros(sum(news)) if input_ids is None else np.asarray(input_ids)
    return StepArrays(
        input_ids=guarded(ids.astype(np.int64)),
        positions=guarded(np.concatenate(positions).astype(np.int64)),
        query_start=guarded(np.cumsum([0, *news]).astype(np.int32)),
        table_start=guarded(np.cumsum([0, *counts]).astype(np.int32)),
        block_ids=guarded(np.asarray(block_ids[:needed], np.int32)),
        logits_rows=guarded(np.asarray(logits_rows, np.int64)),
    )
