"""One step as the kernels read it: arrays that are kept from step to step.

A decode step adds a token to each sequence and, seldom, a block: what did not change is
left where it is. Every other step is packed anew.
"""

from collections.abc import Sequence
from itertools import chain
from operator import lt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hybrid.bridge import csr_block_table, pack_batch
from hybrid.scheduler.plan import ScheduledRequest, StepPlan

from .abi import Step

_BlockIds = tuple[int, ...]


class StepArrays:
    """Fills a ``Step``, whose arrays it owns: they are good until the next one."""

    def __init__(self, step: Step, *, block_size: int) -> None:
        """Start without sequences; ``step``'s other fields are the caller's."""
        self._step: Final = step
        self._decode: Final = _DecodeArrays(block_size)
        self._block_size: Final = block_size
        self._packed: tuple[NDArray[Any], ...] = ()
        """What the struct points to and nobody else holds."""

    def fill(self, plan: StepPlan) -> int:
        """Describe a step; returns its logits rows.

        Raises:
            ValueError: a block table is too short for its sequence's tokens.
        """
        if not plan.num_contexts and self._decode.fill(self._step, plan.scheduled):
            return len(plan.scheduled)
        return self._pack(plan)

    def _pack(self, plan: StepPlan) -> int:
        step, batch = self._step, pack_batch(plan)
        table = csr_block_table(plan.scheduled, batch.seq_lens, self._block_size)
        step.num_tokens = len(batch.input_ids)
        step.num_seqs = len(batch.seq_lens)
        step.num_rows = len(batch.logits_rows)
        self._packed = (
            batch.input_ids,
            batch.positions,
            batch.query_start_loc,
            table.indptr,
            table.indices,
            batch.logits_rows,
        )
        _point(step, [array.ctypes.data for array in self._packed])
        return len(batch.logits_rows)


class _DecodeArrays:
    """Those of steps in which every sequence has one token, and its row is wanted."""

    def __init__(self, block_size: int) -> None:
        self._block_size: Final = block_size
        self._allocate(0)
        self._take([])

    def fill(self, step: Step, scheduled: Sequence[ScheduledRequest]) -> bool:
        """Describe a step; ``False``, with nothing done, if it is another."""
        tokens = [token_id for entry in scheduled for token_id in entry.token_ids]
        rows = [entry.num_logits_rows for entry in scheduled]
        num_seqs = len(scheduled)
        if len(tokens) != num_seqs or rows.count(1) != num_seqs:
            return False
        if [len(entry.token_ids) for entry in scheduled].count(1) != num_seqs:
            return False
        # The same objects where they did not grow, so that this looks at no number.
        tables = [entry.block_ids for entry in scheduled]
        if tables != self._tables:
            self._take(tables)
        positions = [entry.num_computed_tokens for entry in scheduled]
        if not all(map(lt, positions, self._room)):
            return False  # the other way says whose table is too short
        self._input_ids[:num_seqs] = tokens
        self._positions[:num_seqs] = positions
        step.num_tokens = step.num_seqs = step.num_rows = num_seqs
        _point(step, self._addresses)
        return True

    def _take(self, tables: list[_BlockIds]) -> None:
        lengths = list(map(len, tables))
        if len(tables) > len(self._input_ids):
            self._allocate(max(len(tables), 2 * len(self._input_ids)))
        np.cumsum(lengths, out=self._table_start[1 : len(tables) + 1])
        self._block_ids = np.fromiter(chain.from_iterable(tables), dtype=np.int32)
        # Tokens that each has blocks for.
        self._room = [length * self._block_size for length in lengths]
        self._tables = tables
        self._addresses = [
            array.ctypes.data
            for array in (
                self._input_ids,
                self._positions,
                self._query_start,
                self._table_start,
                self._block_ids,
                self._logits_rows,
            )
        ]

    def _allocate(self, num_seqs: int) -> None:
        self._input_ids = np.zeros(num_seqs, np.int64)
        self._positions = np.zeros(num_seqs, np.int64)
        self._logits_rows = np.arange(num_seqs, dtype=np.int64)
        self._query_start = np.arange(num_seqs + 1, dtype=np.int32)
        self._table_start = np.zeros(num_seqs + 1, np.int32)


def _point(step: Step, addresses: Sequence[int]) -> None:
    """Addresses in the order of the struct's fields."""
    (
        step.input_ids,
        step.positions,
        step.query_start,
        step.table_start,
        step.block_ids,
        step.logits_rows,
    ) = addresses
