"""A step's tables and lengths where TensorRT-LLM's attention operator reads them.

Some it reads on the host when it is called, some its kernels read on the device. Both
lie in buffers that are made once: a step sends what changed and allocates nothing, and
a captured graph finds everything where it was.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch

from hybrid.bridge import PackedBatch
from hybrid.bridge.trtllm_lengths import StepLengths
from hybrid.bridge.trtllm_offsets import BlockOffsets
from hybrid.bridge.trtllm_pools import TrtllmPools
from hybrid.scheduler.plan import StepPlan

from .attention import AttentionNeeds
from .sent_array import SentArray, host_allocator


class ThopTables:
    """The operator's arguments that differ from step to step, by its own names."""

    def __init__(
        self, pools: TrtllmPools, needs: AttentionNeeds, device: torch.device
    ) -> None:
        self._max_model_len: Final = needs.max_model_len
        self._lengths: Final = StepLengths(needs.max_num_seqs)
        self._offsets: Final = BlockOffsets(
            pools,
            max_num_seqs=needs.max_num_seqs,
            max_num_blocks=-(-needs.max_model_len // needs.block_size),
            allocate=host_allocator(device),
        )
        self.host_offsets: Final = torch.from_numpy(self._offsets.array)
        """int32 ``[pools, max_num_seqs, 2, max_blocks]`` on the host."""
        (of_pool,) = self._offsets.array
        self._sent_offsets: Final = SentArray(of_pool, device)
        self.device_offsets: Final = self._sent_offsets.device[None]
        """The same on the device."""
        # Of those that the operator reads on the host, what its kernels read, too.
        self._sent_lengths: Final = SentArray.zeros(
            (2, needs.max_num_seqs), torch.int32, device
        )

    def update(self, plan: StepPlan, batch: PackedBatch) -> dict[str, Any]:
        """Write a step and send it to the device.

        Returns:
            Views of length S, and numbers.

        Raises:
            ConfigError: the step is larger than the buffers.
        """
        self._sent_offsets.rewrite(lambda: self._offsets.update(plan.scheduled))
        lengths = self._lengths
        lengths.update(plan)
        total, context = lengths.sequence_length, lengths.context_lengths
        device_total, device_context = self._sent_lengths.put(total, context)
        return {
            "sequence_length": device_total,
            # Whatever the name: after this step.
            "host_past_key_value_lengths": torch.from_numpy(total),
            "host_total_kv_lens": torch.from_numpy(lengths.host_total_kv_lens),
            "context_lengths": device_context,
            "host_context_lengths": torch.from_numpy(context),
            "host_request_types": torch.from_numpy(lengths.request_types),
            "num_contexts": batch.num_contexts,
            "num_ctx_tokens": batch.num_context_tokens,
        }

    def longest(self, num_seqs: int) -> Mapping[str, Any]:
        """What the host is told of generations while a graph is captured: maxima."""
        lengths = torch.full((num_seqs,), self._max_model_len, dtype=torch.int32)
        total = num_seqs * self._max_model_len
        return {
            "host_past_key_value_lengths": lengths,
            "host_context_lengths": lengths,
            "host_total_kv_lens": torch.tensor([0, total], dtype=torch.int32),
        }
