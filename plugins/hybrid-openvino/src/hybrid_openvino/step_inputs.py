"""A step plan as the arrays that OpenVINO's paged attention reads."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.api import ScheduledRequest, StepPlan, csr_block_table, pack_batch


@dataclass(frozen=True, slots=True)
class StepInputs:
    """N tokens of the step, S sequences, B blocks they use, R rows of logits wanted.

    Field names are the model's input names.
    Source: OpenVINO 2026.4, inputs of ``PagedAttentionExtension``.
    """

    input_ids: NDArray[np.int64]
    """int64 ``[N]``."""
    position_ids: NDArray[np.int64]
    """int64 ``[N]``."""
    past_lens: NDArray[np.int32]
    """int32 ``[S]``: tokens of each sequence that are in its blocks already."""
    subsequence_begins: NDArray[np.int32]
    """int32 ``[S + 1]``: where each sequence's tokens begin in ``input_ids``."""
    block_indices: NDArray[np.int32]
    """int32 ``[B]``: block tables, end to end."""
    block_indices_begins: NDArray[np.int32]
    """int32 ``[S + 1]``: where each table begins in ``block_indices``."""
    max_context_len: NDArray[np.int32]
    """int32 scalar: tokens of the longest sequence after this step."""
    logits_rows: NDArray[np.int64]
    """int64 ``[R]``: indices into N of the rows whose logits are wanted."""

    def as_dict(self) -> dict[str, NDArray[Any]]:
        """By input name."""
        return {name: getattr(self, name) for name in self.__slots__}


class StepInputMaker:
    """Makes the inputs of one step after another.

    A decode step differs from the one before by its tokens, and by one in each length,
    as long as no sequence came, went or got a block: then the arrays are advanced in
    place. They are valid until the next step.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._scheduled: tuple[ScheduledRequest, ...] = ()
        self._inputs: StepInputs | None = None

    def make(self, plan: StepPlan) -> StepInputs:
        """Translate a plan; block ids go through unchanged."""
        before, self._scheduled = self._scheduled, plan.scheduled
        size = self._block_size
        if self._inputs is not None and _is_advance(before, plan.scheduled, size):
            _advance(self._inputs, plan.scheduled)
        else:
            self._inputs = make_step_inputs(plan, self._block_size)
        return self._inputs


def _is_advance(
    before: tuple[ScheduledRequest, ...],
    now: tuple[ScheduledRequest, ...],
    block_size: int,
) -> bool:
    """Whether each entry decodes one token more over the same table, in its last block.

    A table is a tuple that the scheduler replaces when it grows: the same object is the
    same table, and need not be compared.
    """
    return len(before) == len(now) and all(
        new.block_ids is old.block_ids
        and new.num_computed_tokens == old.num_computed_tokens + 1
        and new.num_computed_tokens % block_size
        and len(old.token_ids) == len(new.token_ids) == 1
        and old.num_logits_rows == new.num_logits_rows == 1
        for old, new in zip(before, now, strict=True)
    )


def _advance(inputs: StepInputs, scheduled: tuple[ScheduledRequest, ...]) -> None:
    inputs.input_ids[:] = [entry.token_ids[0] for entry in scheduled]
    inputs.position_ids[:] += 1
    inputs.past_lens[:] += 1
    inputs.max_context_len[...] += 1


def make_step_inputs(plan: StepPlan, block_size: int) -> StepInputs:
    """Translate a plan; block ids go through unchanged."""
    batch = pack_batch(plan)
    table = csr_block_table(plan.scheduled, batch.seq_lens, block_size)
    return StepInputs(
        input_ids=batch.input_ids,
        position_ids=batch.positions,
        past_lens=batch.num_computed_tokens,
        subsequence_begins=batch.query_start_loc,
        block_indices=table.indices,
        block_indices_begins=table.indptr,
        max_context_len=np.array(batch.seq_lens.max(), dtype=np.int32),
        logits_rows=batch.logits_rows,
    )
