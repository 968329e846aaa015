"""What the scheduler knows of one sequence. Mutable; never leaves the room."""

from enum import Enum, auto

from .block_table import BlockTable
from .generate_request import GenerateRequest
from .plan import SequenceKey

Rank = tuple[tuple[float, ...], int, int]
"""(the policy's rank, add order, sample index), the lowest first. Unique."""


class SequenceStatus(Enum):
    """Where a sequence is."""

    WAITING = auto()
    """Owns no block; queued for the first time, or preempted."""
    RUNNING = auto()
    FINISHED = auto()


class SequenceState:
    """One sequence: a request's only one, or one of its ``n`` samples.

    Until its prompt is computed a request is one sequence that stands for all samples.
    """

    __slots__ = (
        "end_token_ids",
        "key",
        "max_num_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_prompt_rows_done",
        "num_samples",
        "prompt_len",
        "rank",
        "request",
        "status",
        "table",
        "token_ids",
    )

    def __init__(
        self,
        request: GenerateRequest,
        rank: Rank,
        max_num_tokens: int,
        table: BlockTable,
    ) -> None:
        params = request.sampling_params
        self.request = request
        self.key = SequenceKey(request.request_id, rank[-1])
        self.rank = rank
        self.status = SequenceStatus.WAITING
        self.token_ids = list(request.prompt_token_ids)
        """Prompt and outputs; only grows."""
        self.prompt_len = len(self.token_ids)
        self.max_num_tokens = max_num_tokens
        """Ends with "length" when it has this many tokens, prompt included."""
        self.num_computed_tokens = 0
        self.table = table
        self.num_samples = params.n
        """Samples it stands for, and places of ``max_num_seqs`` it takes."""
        self.num_cached_tokens: int | None = None
        """Set at the first admission and never again."""
        self.num_prompt_rows_done = (
            self.prompt_len if params.prompt_logprobs is None else 0
        )
        """Prompt positions whose logits rows need not be computed (any more)."""
        own_ends = frozenset() if params.ignore_eos else request.eos_token_ids
        self.end_token_ids = own_ends | frozenset(params.stop_token_ids)

    @property
    def wants_prompt_rows(self) -> bool:
        """Whether prompt positions have yet to be reported with their logits."""
        return self.num_prompt_rows_done < self.prompt_len

    def fork(self, sample_index: int, table: BlockTable) -> "SequenceState":
        """Sample ``sample_index`` of the same prompt, over a forked table."""
        child = SequenceState(
            self.request, (*self.rank[:2], sample_index), self.max_num_tokens, table
        )
        child.num_samples = 1
        child.status = self.status
        child.num_computed_tokens = min(self.num_computed_tokens, table.num_slots)
        child.num_cached_tokens = self.num_cached_tokens
        child.num_prompt_rows_done = self.num_prompt_rows_done
        return child
