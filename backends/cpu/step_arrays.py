"""One step as the kernels read it: arrays that are kept from step to step.

A decode step adds a token to each sequence and, seldom, a block: what did not change is
left where it is. Every other step is packed anew.
"""

import ctypes
from collections.abc import Sequence
from itertools import chain
from operator import lt
from struct import Struct
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
        scheduled = plan.scheduled
        is_decode = bool(scheduled) and not plan.num_contexts
        if is_decode and self._decode.fill(self._step, scheduled):
            return len(scheduled)
        return self._pack(plan)

    def _pack(self, plan: StepPlan) -> int:
        step, batch = self._step, pack_batch(plan)
        self._decode.is_pointed_to = False
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
    """Those of steps in which every sequence has one token, and its row is wanted.

    What a model leaves in the processor's caches is its own: each library that has a
    hand in a step costs it more than the numbers that it moves. So what changes in
    every step is written by ``struct``, and numpy is for tables, which change seldom.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size: Final = block_size
        self.is_pointed_to = False
        """Whether the struct says where they are: others may have filled it since."""
        self._allocate(0)
        self._take(())

    def fill(self, step: Step, scheduled: Sequence[ScheduledRequest]) -> bool:
        """Describe a step; ``False``, with nothing done, if it is another."""
        # The fields of the entries in their order, each for all sequences.
        _, _, inputs, computed, tables, rows, _, _ = zip(*scheduled, strict=True)
        num_seqs = len(scheduled)
        tokens = tuple(chain.from_iterable(inputs))
        if len(tokens) != num_seqs or () in inputs or rows.count(1) != num_seqs:
            return False
        # The same objects where they did not grow, so that this looks at no number.
        if tables != self._tables:
            self._take(tables)
        if not all(map(lt, computed, self._room)):
            return False  # the other way says whose table is too short
        self._pack(self._numbers, 0, *tokens, *computed)
        if not self.is_pointed_to:
            step.num_tokens = step.num_seqs = step.num_rows = num_seqs
            _point(step, self._addresses())
            self.is_pointed_to = True
        return True

    def _take(self, tables: tuple[_BlockIds, ...]) -> None:
        # First: if this is interrupted, no step may take what is there for its own.
        self.is_pointed_to = False
        self._tables: tuple[_BlockIds, ...] = ()
        num_seqs, lengths = len(tables), list(map(len, tables))
        if num_seqs > len(self._logits_rows):
            self._allocate(max(num_seqs, 2 * len(self._logits_rows)))
        np.cumsum(lengths, out=self._table_start[1 : num_seqs + 1])
        self._block_ids = np.fromiter(chain.from_iterable(tables), dtype=np.int32)
        # Tokens that each has blocks for.
        self._room = [length * self._block_size for length in lengths]
        self._pack = Struct(f"{2 * num_seqs}q").pack_into
        self._tables = tables

    def _addresses(self) -> tuple[int, ...]:
        input_ids = ctypes.addressof(self._numbers)
        return (
            input_ids,
            input_ids + len(self._tables) * ctypes.sizeof(ctypes.c_int64),
            self._query_start.ctypes.data,
            self._table_start.ctypes.data,
            self._block_ids.ctypes.data,
            self._logits_rows.ctypes.data,
        )

    def _allocate(self, num_seqs: int) -> None:
        # Ids of this step's sequences, then their positions.
        self._numbers = (ctypes.c_int64 * (2 * num_seqs))()
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
