"""What the executor drives: our model with somebody's attention, or a built engine."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from hybrid.backends.interface import ModelInfo
from hybrid.backends.pytorch.kv_pool import KVPool
from hybrid.scheduler.plan import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSizes:
    """The cells of a model's cache."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    """Of the pool, by torch's name."""


class Runner(ABC):
    """Turns step plans into logits, for one model and one thread."""

    @property
    @abstractmethod
    def info(self) -> ModelInfo:
        """What was loaded."""

    @property
    @abstractmethod
    def cache(self) -> CacheSizes:
        """The cache that it needs."""

    @property
    @abstractmethod
    def reserved_bytes(self) -> int:
        """Device memory that it will take beside the pool, once there is one."""

    @property
    def gives_every_row(self) -> bool:
        """Whether it computes logits of every token, as prompt logprobs need."""
        return True

    @abstractmethod
    def make_pool(self, num_blocks: int) -> KVPool:
        """Allocate the block-first pool, null block included, and bind to it.

        Raises:
            ConfigError: the memory cannot be had, or nobody could address it.
        """

    @abstractmethod
    def run(self, plan: StepPlan) -> torch.Tensor:
        """Compute a step; block copies are done.

        Returns:
            ``[sum of num_logits_rows, vocab_size]``, on the device, in the plan's
            order; valid until the next call.
        """

    @abstractmethod
    def close(self) -> None:
        """Free everything. Twice is no error."""
