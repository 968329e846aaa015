"""Paged attention in plain torch for our Llama-shaped model."""

from collections.abc import Sequence
from typing import Final

import torch

from hybrid.bridge import PackedBatch
from hybrid.scheduler.plan import StepPlan

from .kv_pool import KVPool
from .paged_attention import AttentionOptions, attend_contexts, attend_generations
from .step_attention import StepAttention, make_step_attention


class LlamaAttention:
    """Attends over a pool of any order, on any device, one step after the other."""

    def __init__(
        self,
        pool: KVPool,
        *,
        num_heads: int,
        scale: float,
        windows: Sequence[int | None],
        dtype: torch.dtype | None = None,
    ) -> None:
        """Bind to a pool.

        Args:
            pool: as many layers, KV heads and dimensions as the model has.
            num_heads: query heads.
            scale: factor of the scores before the softmax.
            windows: for each layer, tokens that a query sees, itself included;
                ``None``: all.
            dtype: in which the pool's K and V are computed with; ``None``: in that of
                the queries.
        """
        self._pool: Final = pool
        self._num_heads: Final = num_heads
        self._num_kv_heads: Final = pool.layout.num_kv_heads
        self._head_dim: Final = pool.layout.head_dim
        self._options: Final = [AttentionOptions(scale, window) for window in windows]
        self._dtype: Final = dtype
        self._step: StepAttention | None = None

    def begin_step(self, plan: StepPlan) -> PackedBatch:
        """Derive the step's tables and clear the blocks that it begins.

        Args:
            plan: contexts first; generations have one token each.

        Returns:
            The plan's packed arrays.
        """
        step = make_step_attention(plan, self._pool, self._pool.memory.device)
        self._pool.clear_blocks(step.begun_blocks)
        self._step = step
        return step.batch

    def attend(self, layer: int, qkv: torch.Tensor, output: torch.Tensor) -> None:
        """See ``Attends``."""
        step = self._step
        assert step is not None, "begin_step comes before attend"
        heads = qkv.to(self._dtype or qkv.dtype)
        heads = heads.view(len(qkv), -1, self._head_dim).transpose(0, 1)
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
