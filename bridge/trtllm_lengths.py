"""The lengths that TensorRT-LLM's attention wants of a step, in buffers that stay.

Host arrays are read by the operator itself, device arrays by its kernels; here all are
host memory, and whoever has a device copies those that it names.

Source: TensorRT-LLM 1.2, ``thop/attentionOp.cpp`` and AutoDeploy's
``trtllm_attention.py``, which fills the same arguments from outside.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.plan import StepPlan

from .trtllm_offsets import HostAllocator, zeros_on_host

CONTEXT: Final = 0
GENERATION: Final = 1


class StepLengths:
    """Views of length S (sequences of the step) over buffers of ``max_num_seqs``."""

    def __init__(
        self, max_num_seqs: int, allocate: HostAllocator = zeros_on_host
    ) -> None:
        self.num_seqs = 0
        self._rows = allocate((4, max_num_seqs))
        self.host_total_kv_lens: Final = allocate((2,))
        """int32 ``[2]``: tokens after this step, summed over contexts and over
        generations."""

    def update(self, plan: StepPlan) -> None:
        """Write one step's lengths.

        Raises:
            ConfigError: more sequences than the buffers hold, or generations of
                different numbers of query tokens, which the operator cannot take.
        """
        scheduled, num_contexts = plan.scheduled, plan.num_contexts
        count = len(scheduled)
        if count > self._rows.shape[1]:
            raise ConfigError(
                f"step lengths: {count} sequences, must be at most "
                f"{self._rows.shape[1]}"
            )
        widths = {len(entry.token_ids) for entry in scheduled[num_contexts:]}
        if len(widths) > 1:
            raise ConfigError(
                f"step lengths: generations of {sorted(widths)} query tokens in one "
                "step; TensorRT-LLM takes one number for all"
            )
        self.num_seqs = count
        total, queries, prompts, kinds = self._rows[:, :count]
        num_queries = [len(entry.token_ids) for entry in scheduled]
        queries[:] = num_queries
        total[:] = [entry.num_computed_tokens for entry in scheduled]
        total += queries
        prompts[:num_contexts] = queries[:num_contexts]
        prompts[num_contexts:] = [
            len(entry.request.prompt_token_ids) for entry in scheduled[num_contexts:]
        ]
        kinds[:num_contexts] = CONTEXT
        kinds[num_contexts:] = GENERATION
        self.host_total_kv_lens[0] = total[:num_contexts].sum()
        self.host_total_kv_lens[1] = total[num_contexts:].sum()

    @property
    def sequence_length(self) -> NDArray[np.int32]:
        """int32 ``[S]``: tokens of each sequence after this step.

        Also what the operator calls ``host_past_key_value_lengths``, whatever the name.
        """
        return self._rows[0, : self.num_seqs]

    @property
    def query_lens(self) -> NDArray[np.int32]:
        """int32 ``[S]``: tokens of each sequence in this step."""
        return self._rows[1, : self.num_seqs]

    @property
    def context_lengths(self) -> NDArray[np.int32]:
        """int32 ``[S]``: a context's tokens in this step, a generation's prompt length.

        The operator sums the former to tell context tokens from the others.
        """
        return self._rows[2, : self.num_seqs]

    @property
    def request_types(self) -> NDArray[np.int32]:
        """int32 ``[S]``: 0 context, 1 generation; contexts first."""
        return self._rows[3, : self.num_seqs]
