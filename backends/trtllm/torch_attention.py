"""Attention in plain torch: what the compiled kernels are compared with."""

from typing import ClassVar

import torch

from hybrid.backends.pytorch.kv_pool import KVPool
from hybrid.backends.pytorch.llama_attention import LlamaAttention
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
        self._attention = LlamaAttention(
            pool,
            num_heads=needs.num_heads,
            scale=needs.scale,
            windows=needs.windows,
        )

    def begin_step(self, plan: StepPlan, batch: PackedBatch) -> None:
        """See ``Attention``."""
        del batch  # packed anew with the rest of the step's metadata
        self._attention.begin_step(plan)

    def attend(self, layer: int, qkv: torch.Tensor, output: torch.Tensor) -> None:
        """See ``Attention``."""
        self._attention.attend(layer, qkv, output)
