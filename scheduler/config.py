"""What the paged scheduler must know about its budget and its pool."""

from dataclasses import dataclass
from enum import StrEnum


class SchedulingPolicy(StrEnum):
    """Which waiting request is next, and whom a preemption hits."""

    FCFS = "fcfs"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one scheduler. The engine derives it from its own configuration."""

    block_size: int
    """Tokens a block holds."""
    num_blocks: int
    """Usable blocks; ids run from 1, for block 0 is the null block, never allocated."""
    max_model_len: int
    """Most tokens of a sequence, prompt and answer together."""
    max_num_seqs: int = 256
    """Most sequences that run at once; a request with n samples takes n places."""
    max_num_batched_tokens: int = 2048
    """Token budget of one step."""
    max_prefill_chunk_tokens: int | None = None
    """Most tokens of one prompt in one step; ``None``: whatever the budget leaves."""
    max_prompt_logprobs_tokens: int = 256
    """The same for a prompt whose log-probabilities are wanted: bounds logits rows.
    Without chunked prefill a prompt is never cut, so that neither limit applies."""
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    supports_block_copy: bool = True
    """Whether the executor copies blocks; without it a fork shares full blocks only."""
    policy: SchedulingPolicy = SchedulingPolicy.FCFS
    cache_domain: tuple[tuple[str, str], ...] = ()
    """Name and value of everything about this engine that changes KV contents (model,
    KV dtype, RoPE, executor): part of every block hash."""
