"""One step plan in the making: the budget that is left and the entries so far."""

from .config import SchedulerConfig
from .plan import ScheduledRequest, SequenceKey
from .sequence_state import SequenceState


class StepBuilder:
    """Collects entries within one token budget; born and dropped within a step."""

    __slots__ = (
        "_config",
        "_context_sequences",
        "_contexts",
        "_generation_sequences",
        "_generations",
        "budget",
        "preempted",
    )

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self.budget = config.max_num_batched_tokens
        """Tokens that may still be scheduled."""
        self.preempted: list[SequenceKey] = []
        self._contexts: list[ScheduledRequest] = []
        self._generations: list[ScheduledRequest] = []
        self._context_sequences: list[SequenceState] = []
        self._generation_sequences: list[SequenceState] = []

    @property
    def scheduled(self) -> tuple[ScheduledRequest, ...]:
        """The entries, contexts first."""
        return (*self._contexts, *self._generations)

    @property
    def num_contexts(self) -> int:
        """How many of the entries are contexts."""
        return len(self._contexts)

    @property
    def num_scheduled_tokens(self) -> int:
        """Tokens of all entries."""
        return self._config.max_num_batched_tokens - self.budget

    @property
    def sequences(self) -> list[SequenceState]:
        """The sequences behind the entries, in the same order."""
        return self._context_sequences + self._generation_sequences

    def num_new_tokens(self, sequence: SequenceState, num_computed_tokens: int) -> int:
        """How many tokens the sequence may compute now; 0 if the budget forbids any."""
        wanted = len(sequence.token_ids) - num_computed_tokens
        if not self._config.enable_chunked_prefill:
            return wanted if wanted <= self.budget else 0
        limit = self._config.max_prefill_chunk_tokens
        if limit is not None:
            wanted = min(wanted, limit)
        if sequence.wants_prompt_rows:
            wanted = min(wanted, self._config.max_prompt_logprobs_tokens)
        return min(wanted, self.budget)

    def add_generation(self, sequence: SequenceState) -> None:
        """Schedule the newest token of a sequence that is otherwise computed.

        The hot path: one call per running sequence and step.
        """
        self.budget -= 1
        self._generation_sequences.append(sequence)
        self._generations.append(
            ScheduledRequest(
                sequence.request,
                sequence.rank[3],
                (sequence.token_ids[-1],),
                sequence.num_computed_tokens,
                sequence.table.block_ids,
                1,
                1,
                0,
            )
        )

    def add_chunk(self, sequence: SequenceState, num_new_tokens: int) -> None:
        """Schedule the next tokens of a prompt or of a recomputation."""
        self.budget -= num_new_tokens
        start = sequence.num_computed_tokens
        end = start + num_new_tokens
        is_last = end == len(sequence.token_ids)
        num_rows = int(is_last)
        if sequence.wants_prompt_rows:
            num_rows = max(end - max(start, sequence.num_prompt_rows_done), num_rows)
        entry = ScheduledRequest(
            request=sequence.request,
            sample_index=sequence.rank[3],
            token_ids=tuple(sequence.token_ids[start:end]),
            num_computed_tokens=start,
            block_ids=sequence.table.block_ids,
            num_logits_rows=num_rows,
            num_samples=sequence.num_samples if is_last else 0,
        )
        has_outputs = len(sequence.token_ids) > sequence.prompt_len
        if num_new_tokens == 1 and has_outputs:
            self._generations.append(entry)
            self._generation_sequences.append(sequence)
        else:
            self._contexts.append(entry)
            self._context_sequences.append(sequence)
