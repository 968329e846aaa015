"""A step plan as the arrays that OpenVINO's paged attention reads."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.api import StepPlan, csr_block_table, pack_batch


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
