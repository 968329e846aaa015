"""The step plan: what one step of the engine computes. Frozen, plain values.

A plan is finished when ``schedule()`` returns it: nobody adds to it, so that it can be
logged, compared, replayed, and sent to another process. No tensor, no text.
"""

from dataclasses import dataclass
from typing import NamedTuple

from .generate_request import GenerateRequest


class SequenceKey(NamedTuple):
    """Names one sequence: a request with ``n`` samples runs as ``n`` sequences.

    Before the fork (while the shared prompt is computed) only sample 0 exists.
    """

    request_id: str
    sample_index: int


class BlockCopy(NamedTuple):
    """Copy the whole block ``source`` over ``target`` before anything is computed."""

    source: int
    target: int


class ScheduledRequest(NamedTuple):
    """The share of one sequence in one step.

    A named tuple: as immutable as a frozen data class and several times cheaper to
    make, which matters for what is made per sequence and step. Read it by field name.
    """

    request: GenerateRequest
    sample_index: int
    token_ids: tuple[int, ...]
    """Tokens to run through the model now; token i stands at position
    ``num_computed_tokens + i``."""
    num_computed_tokens: int
    """Tokens whose K and V are in the blocks already (computed or found cached)."""
    block_ids: tuple[int, ...]
    """Block table: token at position p lives in ``block_ids[p // block_size]``. Covers
    at least every token up to the last of ``token_ids``."""
    num_logits_rows: int
    """Logits are wanted for this many of the *last* tokens: 0 in a prompt chunk that is
    not the last, 1 normally. When prompt log-probabilities were asked for: all, less
    those at positions that an earlier entry reported before a preemption, so that each
    prompt position has its row exactly once."""
    num_samples: int
    """Tokens to draw from the last row: 0 (an unfinished prompt), 1, or ``n`` in the
    step that completes the prompt of a request with ``n`` samples; draw j is the first
    token of sample j."""
    num_draft_tokens: int = 0
    """How many of the last ``token_ids`` are unverified guesses."""

    @property
    def key(self) -> SequenceKey:
        """The sequence that this entry advances."""
        return SequenceKey(self.request.request_id, self.sample_index)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. ``scheduled`` holds contexts (prefill chunks) first, generations after.

    That is TensorRT-LLM's packed order, which every executor gets. A one-token prompt
    or chunk counts as a generation when its sequence has outputs already, else as a
    context.
    """

    step: int
    """Counts the plans of one scheduler from 0."""
    scheduled: tuple[ScheduledRequest, ...]
    num_contexts: int
    """``scheduled[:num_contexts]`` are contexts."""
    block_copies: tuple[BlockCopy, ...]
    """To be done in this order before the forward pass (copy on write)."""
    finished: tuple[SequenceKey, ...]
    """Sequences that ended since the last plan, by whatever cause."""
    preempted: tuple[SequenceKey, ...]
    """Sequences whose blocks were taken since the last plan; they come back later and
    are computed again."""
    needs_logits: bool = True
    """False: each entry has one row and draws its likeliest id, so that
    ``ForwardResult.likeliest_ids`` will do. Schedulers, which know nothing of draws,
    leave it; the engine says it to the executor, in a copy."""

    @property
    def num_scheduled_tokens(self) -> int:
        """Tokens that this step runs through the model."""
        return sum(len(entry.token_ids) for entry in self.scheduled)
