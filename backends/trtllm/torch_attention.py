"""Attention in plain torch: what the compiled kernels are compared with."""

from typing import ClassVar

import torch

from hybrid.backends.pytorch.kv_pool import KVPool
from hybrid.backends.pytorch.paged_attention import (
    AttentionOptions,
    attend_contexts,
    attend_generations,
)
from hybrid.backends.pytorch.step_attention import StepAttention, make_step_attention
from hybrid.bridge import PackedBatch
from hybrid.scheduler.plan import StepPlan

from .attention import Attention, AttentionNeeds
from .machine import Machine


class TorchAttention(Attention):
    """The torch executor's attention, on any device, over any pool."""

    name: ClassVar[str] = "torch"
    description: ClassVar[str] = "plain torch on CUDA or CPU, the reference"

    @classmethod
    def refusal(cls, machine: Machine, needs: AttentionNeeds | None) -> str | None:
        """Never: torch is there, or nothing is."""
        del machine, needs
        return None

    def __init__(self, needs: AttentionNeeds, pool: KVPool) -> None:
        self._pool = pool
        self._device = pool.memory.device
        self._num_heads = needs.num_heads
        self._num_kv_heads = needs.num_kv_heads
        self._head_dim = needs.head_dim
        self._options = [
            AttentionOptions(needs.scale, window) for window in needs.windows
        ]
        self._step: StepAttention | None = None

    def begin_step(self, plan: StepPlan, batch: PackedBatch) -> None:
        """See ``Attention``."""
        del batch  # packed anew with the rest of the step's metadata
        self._step = make_step_attention(plan, self._pool, self._device)
        self._pool.clear_blocks(self._step.begun_blocks)

    def attend(self, layer: int, qkv: torch.Tensor, output: torch.Tensor) -> None:
        """See ``Attention``."""
        step = self._step
        assert step is not None, "begin_step comes before attend"
        heads = qkv.view(len(qkv), -1, self._head_dim).transpose(0, 1)
        queries, keys, values = heads.tensor_split(
            (self._num_heads, self._num_heads + self._num_kv_heads)
        )
        self._pool.write(layer, step.places, keys, values)
        options = self._options[layer]
        by_head = output.view(len(output), self._num_heads, self._head_dim)
        contexts = attend_contexts(step, layer, (queries, keys, values), options)
        for span, attended in zip(step.contexts, contexts, strict=True):
            by_head[span.start : span.end] = attended.transpose(0, 1)
        first = step.batch.num_context_tokens
        if first < len(qkv):
            rows = queries[:, first:]
            by_head[first:] = attend_generations(step, layer, rows, options)
