"""One step plan in the making: the budgets that are left and the entries so far."""

from .config import SchedulerConfig
from .plan import ScheduledRequest, SequenceKey
from .sequence_state import SequenceState


class StepBuilder:
    """Collects entries within the step's budgets; born and dropped within a step.

    Two budgets: tokens, and logits rows of prompts whose log-probabilities are wanted,
    for a row is as wide as the vocabulary.
    """

    __slots__ = (
        "_config",
        "_context_sequences",
        "_contexts",
        "_generation_sequences",
        "_generations",
        "_num_rows_left",
        "budget",
        "num_owed_blocks",
        "preempted",
    )

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self.budget = config.max_num_batched_tokens
        """Tokens that may still be scheduled."""
        self.num_owed_blocks = 0
        """Blocks that sequences of this step will yet need for the tokens they have:
        not allocated, and not free for others either."""
        self._num_rows_left = config.max_prompt_logprobs_tokens
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

    def lacks_rows(self, sequence: SequenceState, num_computed_tokens: int) -> bool:
        """Whether the sequence's next tokens want rows and the step has none for them.

        The first to ask never lacks any, so that the best-ranked sequence advances.
        """
        if not sequence.wants_prompt_rows:
            return False
        if self._config.enable_chunked_prefill:
            num_by_rows = self._num_tokens_by_rows(sequence, num_computed_tokens)
            return self._cut(sequence, num_computed_tokens, num_by_rows) == 0
        # A prompt that is never cut may want more rows than there are: it takes all.
        is_unspent = self._num_rows_left == self._config.max_prompt_logprobs_tokens
        num_rows = sequence.prompt_len - sequence.num_prompt_rows_done
        return not is_unspent and num_rows > self._num_rows_left

    def num_new_tokens(self, sequence: SequenceState, num_computed_tokens: int) -> int:
        """How many tokens the sequence may compute now; 0 if the budget forbids any.

        Where chunks are aligned that can be while some budget is left, for others. The
        caller has made sure that it does not lack rows.
        """
        wanted = len(sequence.token_ids) - num_computed_tokens
        if not self._config.enable_chunked_prefill:
            return wanted if wanted <= self.budget else 0
        limit = self._config.max_prefill_chunk_tokens
        if limit is not None:
            wanted = min(wanted, limit)
        if sequence.wants_prompt_rows:
            num_by_rows = self._num_tokens_by_rows(sequence, num_computed_tokens)
            wanted = min(wanted, num_by_rows)
        return self._cut(sequence, num_computed_tokens, min(wanted, self.budget))

    def owe_rest(self, sequence: SequenceState) -> None:
        """Count what a running sequence needs for the tokens it computes later."""
        num_blocks = -(-len(sequence.token_ids) // self._config.block_size)
        self.num_owed_blocks += num_blocks - len(sequence.table.block_ids)

    def add_generation(self, sequence: SequenceState) -> None:
        """Schedule the newest token of a sequence that is otherwise computed.

        The hot path: one call per running sequence and step.
        """
        self.budget -= 1
        self._generation_sequences.append(sequence)
        self._generations.append(
            ScheduledRequest(
                sequence.request,
                sequence.rank[2],
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
            num_rows = max(end - max(start, sequence.num_prompt_rows_done), 0)
            self._num_rows_left = max(self._num_rows_left - num_rows, 0)
        if not is_last:
            self.owe_rest(sequence)
        entry = ScheduledRequest(
            request=sequence.request,
            sample_index=sequence.rank[2],
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

    def _cut(
        self, sequence: SequenceState, num_computed_tokens: int, num_tokens: int
    ) -> int:
        """The most tokens, up to as many, that a chunk may end after."""
        end = num_computed_tokens + num_tokens
        if self._config.align_chunks and end < len(sequence.token_ids):
            num_tokens -= end % self._config.block_size
        return max(num_tokens, 0)

    def _num_tokens_by_rows(
        self, sequence: SequenceState, num_computed_tokens: int
    ) -> int:
        """The tokens it may compute before it would need a row that is not left."""
        # Positions reported before a preemption are computed again without rows.
        num_reported = max(sequence.num_prompt_rows_done - num_computed_tokens, 0)
        return num_reported + self._num_rows_left
