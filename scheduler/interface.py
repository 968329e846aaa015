"""The scheduler as the engine sees it. Ours is one; another may take its place."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from .errors import UnsupportedFeature
from .generate_request import GenerateRequest
from .kv_events import KvEvent
from .plan import SequenceKey, StepPlan


class FinishReason(StrEnum):
    """Why a sequence ended; the values are those of the OpenAI and vLLM interfaces."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class SequenceUpdate(NamedTuple):
    """What one step changed for one sequence that was given a token.

    A named tuple, as is ``ScheduledRequest``: one is made per sequence and step.
    """

    request: GenerateRequest
    sample_index: int
    new_token_ids: tuple[int, ...]
    num_cached_tokens: int
    """Prompt tokens that the first admission of this request found in the prefix cache.
    Set once: recomputation after a preemption does not count."""
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    """The entry of ``stop_token_ids`` that ended it; ``None``: the model's own end."""


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Counters since start and gauges of now. Counters never fall."""

    num_waiting: int
    num_running: int
    num_total_blocks: int
    num_free_blocks: int
    """Blocks that nobody owns, cached-idle ones included."""
    num_cached_idle_blocks: int
    """Free blocks whose contents can still be found by hash."""
    num_allocated_slots: int
    """Token slots in owned blocks, each shared block counted once."""
    num_used_slots: int
    """Those of them that hold a token."""
    num_preemptions: int
    num_prefix_queried_tokens: int
    """Prompt tokens looked up in the prefix cache at first admissions."""
    num_prefix_hit_tokens: int
    num_steps: int
    num_scheduled_tokens: int


class Scheduler(ABC):
    """Decides what runs; owns requests and block tables.

    Not thread-safe: one thread calls it. ``schedule()`` and ``update()`` alternate.
    """

    @abstractmethod
    def add(self, request: GenerateRequest) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: it can never run (``RequestTooLong``, ``OutOfBlocks``,
                ``DuplicateRequest`` say why); nothing was queued.
        """

    @abstractmethod
    def schedule(self) -> StepPlan:
        """Decide the next step. Empty ``scheduled`` means that nothing can run."""

    @abstractmethod
    def update(
        self, plan: StepPlan, sampled: Sequence[Sequence[int]]
    ) -> tuple[SequenceUpdate, ...]:
        """Commit the step: append tokens, hash full blocks, fork, stop, free.

        Args:
            plan: the plan last returned by ``schedule()``.
            sampled: for each entry of ``plan.scheduled`` its ``num_samples`` tokens
                (with draft tokens: the accepted run and the token after it).

        Returns:
            One update per sequence that got a token, in the plan's order; a fork yields
            one per sample.
        """

    @abstractmethod
    def stop(self, key: SequenceKey) -> None:
        """End one sequence (its text met a stop string) and free its blocks.

        Before a fork sample 0 stands for the whole request. Twice, or unknown, is no
        error.
        """

    @abstractmethod
    def abort(self, request_id: str) -> bool:
        """End every sequence of a request, in whatever state; free the blocks.

        Returns:
            Whether the request was known and unfinished; if not, that is no error.
        """

    @abstractmethod
    def has_unfinished(self) -> bool:
        """Whether any request waits or runs."""

    @abstractmethod
    def stats(self) -> SchedulerStats:
        """Counters and gauges of now; O(running) at most."""

    @abstractmethod
    def reset_prefix_cache(self) -> bool:
        """Forget every cached block; ``False`` if some are in use (nothing is done)."""

    def start_kv_events(self) -> tuple[KvEvent, ...]:
        """Record from now on what becomes findable in the prefix cache, and what ends.

        Returns:
            The events that lead from any state to the present one. Twice is no error:
            what had been recorded and not taken is among them.

        Raises:
            UnsupportedFeature: it cannot tell, as any scheduler may.
        """
        raise UnsupportedFeature(f"{type(self).__name__} reports no KV events")

    def stop_kv_events(self) -> None:  # noqa: B027 - nothing to do for who cannot tell
        """Record no more; most schedulers never did."""

    def take_kv_events(self) -> tuple[KvEvent, ...]:
        """What was recorded since the last call, in order."""
        return ()

    @abstractmethod
    def check_integrity(self) -> None:
        """Assert the invariants of pool and tables; called while nothing runs."""
