"""Plain torch whose decode steps can be captured, to try graphs without a library."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch.nn.functional import scaled_dot_product_attention

from hybrid.backends.pytorch.kv_pool import KVPool
from hybrid.backends.trtllm.attention import AttentionNeeds
from hybrid.backends.trtllm.kv_scatter import scatter_kv
from hybrid.backends.trtllm.torch_attention import TorchAttention
from hybrid.bridge import PackedBatch
from hybrid.scheduler import StepPlan


class CapturableAttention(TorchAttention):
    """Decodes over tables of one width, in the model's dtype, without windows."""

    can_capture: ClassVar[bool] = True

    def __init__(self, needs: AttentionNeeds, pool: KVPool) -> None:
        super().__init__(needs, pool)
        self._needs = needs
        width = -(-needs.max_model_len // needs.block_size)
        device = pool.memory.device
        self._tables = torch.zeros(
            (needs.max_num_seqs, width), dtype=torch.int64, device=device
        )
        self._lens = torch.zeros(needs.max_num_seqs, dtype=torch.int64, device=device)
        self._is_decode = False

    def begin_step(self, plan: StepPlan, batch: PackedBatch) -> None:
        """See ``Attention``."""
        super().begin_step(plan, batch)
        self._is_decode = plan.num_contexts == 0
        if self._is_decode:
            for row, entry in enumerate(plan.scheduled):
                blocks = torch.tensor(entry.block_ids)
                self._tables[row, : len(blocks)].copy_(blocks)
                self._lens[row] = entry.num_computed_tokens + 1

    def attend(self, layer: int, qkv: torch.Tensor, output: torch.Tensor) -> None:
        """See ``Attention``."""
        if not self._is_decode:
            super().attend(layer, qkv, output)
            return
        needs, size = self._needs, self._needs.block_size
        tables, lens = self._tables[: len(qkv)], self._lens[: len(qkv), None]
        keys, values = self._pool.by_block[:, layer].unbind(1)
        last = lens - 1
        slots = tables.gather(1, last // size) * size + last % size
        scatter_kv(qkv, keys, values, slots.flatten(), 1.0)
        sees = torch.arange(needs.max_model_len, device=qkv.device) < lens
        # Nothing that is weighed with 0 may be NaN.
        known = [
            torch.where(
                sees[:, None, :, None],
                cells[tables].transpose(1, 2).flatten(2, 3)[:, :, : sees.shape[1]],
                0,
            )
            for cells in (keys, values)
        ]
        queries = qkv[:, : output.shape[1]].view(len(qkv), needs.num_heads, 1, -1)
        attended = scaled_dot_product_attention(
            queries,
            *known,
            attn_mask=sees[:, None, None],
            scale=needs.scale,
            enable_gqa=True,
        )
        output.copy_(attended.view_as(output))

    @contextmanager
    def captured(self, num_seqs: int) -> Iterator[None]:
        """Freeze nothing: launches depend on how many sequences there are alone."""
        del num_seqs
        yield
