"""What the paged scheduler must know about its budget and its pool."""

from dataclasses import dataclass
from enum import StrEnum


class SchedulingPolicy(StrEnum):
    """Which waiting request is next, and whom a preemption hits."""

    FCFS = "fcfs"
    """In the order of adding; the latest gives way."""
    PRIORITY = "priority"
    """By priority, then arrival, then order of adding; the last of them gives way. A
    waiting request never evicts a running one by itself."""


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
    """Most sequences that run at once; a request with n samples takes n places from
    its admission on, before its samples exist."""
    max_num_batched_tokens: int = 2048
    """Token budget of one step. Below ``max_num_seqs`` it serves the best-ranked
    sequences, the others wait for them to end."""
    max_prefill_chunk_tokens: int | None = None
    """Most tokens of one prompt in one step; ``None``: whatever the budget leaves."""
    max_prompt_logprobs_tokens: int = 256
    """Most logits rows of one step, over all requests, that prompt log-probabilities
    want. A request that finds them spent waits for the next step; those behind it do
    not. Without chunked prefill no prompt is cut: one that wants more takes all."""
    enable_prefix_caching: bool = True
    """Whether blocks that nobody owns keep their contents for later requests."""
    enable_chunked_prefill: bool = True
    """Without it the budget must hold a whole context, or the scheduler refuses it."""
    align_chunks: bool = False
    """Whether a chunk that is not its prompt's last must end at a block boundary, for
    executors that can continue from nowhere else. A prompt for which the step has less
    than a block left waits: below ``max_num_seqs - 1 + block_size`` tokens a step that
    may be until some of the answers that run beside it have ended."""
    supports_block_copy: bool = True
    """Whether the executor copies blocks; without it a fork shares full blocks only."""
    policy: SchedulingPolicy = SchedulingPolicy.FCFS
    cache_domain: tuple[tuple[str, str], ...] = ()
    """Name and value of everything about this engine that changes KV contents (model,
    KV dtype, RoPE, executor): part of every block hash."""
