"""How many prompt tokens wait, and how many of them the prefix cache will spare.

What a router weighs servers by; the estimate is that of smg-grpc-servicer 0.14.1
(``vllm/loads.py``).
"""

from collections import deque
from itertools import islice
from typing import Final

from hybrid.outputs import RequestOutput

MAX_LOOK_UPS: Final = 64
"""Requests over which the hit rate is taken: what counts is what comes lately."""


class PromptLoad:
    """Told of every request by the host; used within the event loop only."""

    def __init__(self) -> None:
        self._unanswered: Final[dict[str, int]] = {}
        """Prompt tokens of requests without an output, the oldest first."""
        self._look_ups: Final[deque[tuple[int, int]]] = deque(maxlen=MAX_LOOK_UPS)
        """Prompt tokens, and those that were found in the cache."""

    def came(self, request_id: str, num_prompt_tokens: int) -> None:
        """A request was let in."""
        self._unanswered[request_id] = num_prompt_tokens

    def progressed(self, output: RequestOutput) -> None:
        """An answer has grown, or has ended; perhaps before its prompt ran."""
        is_first = self._unanswered.pop(output.request_id, None) is not None
        metrics = output.metrics
        if is_first and metrics.queue_s is not None:
            self._look_ups.append(
                (metrics.num_prompt_tokens, metrics.num_cached_tokens)
            )

    def left(self, request_id: str) -> None:
        """A request is over, answered or not."""
        self._unanswered.pop(request_id, None)

    @property
    def hit_rate(self) -> float:
        """Share of lately looked up prompt tokens that were found; 0 before any."""
        num_found = sum(found for _, found in self._look_ups)
        return num_found / max(sum(count for count, _ in self._look_ups), 1)

    def num_waiting_uncached(self, num_waiting: int) -> int:
        """Prompt tokens of the youngest requests that will have to be computed.

        Args:
            num_waiting: requests of the scheduler's queue; older ones are running.
        """
        youngest = islice(reversed(self._unanswered.values()), num_waiting)
        return round(sum(youngest) * (1.0 - self.hit_rate))
