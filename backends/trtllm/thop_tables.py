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
from .pinned_array import host_allocator


class ThopTables:
    """The operator's arguments that differ from step to step, by its own names.

    Host arrays are written anew by each ``update`` while the device may still copy from
    them; that is sound because every step ends with its logits on the host.
    """

    def __init__(
        self, pools: TrtllmPools, needs: AttentionNeeds, device: torch.device
    ) -> None:
        allocate = host_allocator(device)
        self._max_model_len: Final = needs.max_model_len
        self._lengths: Final = StepLengths(needs.max_num_seqs, allocate)
        self._offsets: Final = BlockOffsets(
            pools,
            max_num_seqs=needs.max_num_seqs,
            max_num_blocks=-(-needs.max_model_len // needs.block_size),
            allocate=allocate,
        )
        self.host_offsets: Final = torch.from_numpy(self._offsets.array)
        """int32 ``[pools, max_num_seqs, 2, max_blocks]`` on the host."""
        self.device_offsets: Final = self.host_offsets.to(device, copy=True)
        """The same on the device."""
        self._device_lengths: Final = torch.zeros(
            (2, needs.max_num_seqs), dtype=torch.int32, device=device
        )

    def update(self, plan: StepPlan, batch: PackedBatch) -> dict[str, Any]:
        """Write a step and send it to the device.

        Returns:
            Views of length S, and numbers.

        Raises:
            ConfigError: the step is larger than the buffers.
        """
        for first, end in _runs(self._offsets.update(plan.scheduled)):
            rows = self.host_offsets[:, first:end]
            self.device_offsets[:, first:end].copy_(rows, non_blocking=True)
        lengths = self._lengths
        lengths.update(plan)
        total = torch.from_numpy(lengths.sequence_length)
        context = torch.from_numpy(lengths.context_lengths)
        device_total, device_context = self._device_lengths[:, : lengths.num_seqs]
        device_total.copy_(total, non_blocking=True)
        device_context.copy_(context, non_blocking=True)
        return {
            "sequence_length": device_total,
            "host_past_key_value_lengths": total,  # whatever the name: after this step
            "host_total_kv_lens": torch.from_numpy(lengths.host_total_kv_lens),
            "context_lengths": device_context,
            "host_context_lengths": context,
            "host_request_types": torch.from_numpy(lengths.request_types),
            "num_contexts": batch.num_contexts,
            "num_ctx_tokens": batch.num_context_tokens,
        }

    def longest(self, num_seqs: int) -> Mapping[str, Any]:
        """What the host is told of generations while a graph is captured: maxima.

        In arrays of their own, since the device may still copy from the step's.
        """
        lengths = torch.full((num_seqs,), self._max_model_len, dtype=torch.int32)
        total = num_seqs * self._max_model_len
        return {
            "host_past_key_value_lengths": lengths,
            "host_context_lengths": lengths,
            "host_total_kv_lens": torch.tensor([0, total], dtype=torch.int32),
        }


def _runs(rows: list[int]) -> list[tuple[int, int]]:
    """Group ascending rows into [first, end), so that neighbours are one copy."""
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and runs[-1][1] == row:
            runs[-1] = (runs[-1][0], row + 1)
        else:
            runs.append((row, row + 1))
    return runs
