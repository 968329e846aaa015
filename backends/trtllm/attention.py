"""The seam between our model and whoever attends: write K and V, attend, per layer.

An implementation knows the paged pool and the kernels of one library; it knows neither
weights nor requests. Rotary embeddings and q/k norms are done before it is called.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import torch

from hybrid.backends.pytorch.kv_pool import KVPool
from hybrid.bridge import PackedBatch
from hybrid.scheduler.plan import StepPlan

from .machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionNeeds:
    """What a model and its options ask of an implementation."""

    device: str
    """``cuda`` or ``cpu``."""
    dtype: str
    """Of queries and outputs, by torch's name."""
    kv_dtype: str
    """Of the pool: ``dtype``, or ``float8_e4m3fn`` with scales."""
    block_size: int
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    """For each layer, tokens that a query sees, itself included; ``None``: all."""
    max_model_len: int
    """Most tokens of one sequence."""
    max_num_seqs: int
    """Most sequences of one step."""
    scale: float
    """Factor of the scores before the softmax."""
    kv_scale: float = 1.0
    """Stored number times this = the true K or V, where the pool is quantised."""
    compute_capability: tuple[int, int] | None = None
    """(major, minor) of the GPU, for those whose kernels differ by it."""


class Attention(ABC):
    """Attention over a block-first pool, for one model and one thread.

    Between ``begin_step`` and the next, ``attend`` is called once for every layer.
    """

    name: ClassVar[str]
    """What the option ``attention`` calls it."""
    description: ClassVar[str]
    """One line, for tables."""
    can_capture: ClassVar[bool] = False
    """Whether a decode step may be captured in a CUDA graph: ``begin_step`` then
    changes contents only, never addresses or host values that a launch depends on."""

    @classmethod
    @abstractmethod
    def refusal(cls, machine: Machine, needs: AttentionNeeds | None) -> str | None:
        """Say why it cannot serve here, in words for ``hybrid executors --explain``.

        Imports nothing heavy unless the cheap questions are answered well.

        Args:
            machine: what there is.
            needs: of the loaded model; ``None``: only the machine is asked about.

        Returns:
            The reason, or ``None`` if it can.
        """

    @classmethod
    def workspace_bytes(cls, needs: AttentionNeeds) -> int:
        """Tell what memory it will take beside the pool: large things alone.

        Args:
            needs: of the loaded model, whose pool is not yet made.
        """
        del needs
        return 0

    @abstractmethod
    def __init__(self, needs: AttentionNeeds, pool: KVPool) -> None:
        """Bind to the pool; make all buffers that a step needs.

        Raises:
            ConfigError: the pool cannot be addressed so.
        """

    @abstractmethod
    def begin_step(self, plan: StepPlan, batch: PackedBatch) -> None:
        """Bring the step's tables and lengths to where the kernels read them.

        Args:
            plan: contexts first; generations have one token each.
            batch: the same plan, packed.
        """

    @abstractmethod
    def attend(self, layer: int, qkv: torch.Tensor, output: torch.Tensor) -> None:
        """Write the step's K and V of one layer into the pool, then attend.

        Args:
            layer: index of the layer.
            qkv: ``[N, (num_heads + 2 * num_kv_heads) * head_dim]``, contiguous: each
                token's queries, keys, values, head by head.
            output: ``[N, num_heads * head_dim]``, contiguous; written.
        """

    @property
    def capture_key(self) -> int:
        """Equal as long as the addresses hold that captured launches know.

        Only an ``attend`` may change it: by moving memory that was too small.
        """
        return 0

    def captured(self, num_seqs: int) -> AbstractContextManager[None]:
        """Freeze host values at their maxima while a decode step is captured.

        Entered after ``begin_step`` of a plan of ``num_seqs`` generations.
        """
        raise NotImplementedError(f"{self.name} cannot be captured ({num_seqs})")

    def close(self) -> None:  # noqa: B027 - most hold nothing but tensors
        """Give back what is not freed with the object. Twice is no error."""
