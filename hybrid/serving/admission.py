"""How much a server takes on: more is refused at once, with a hint when to come back.

The scheduler's queue has no end of its own; a client that waits in it for minutes is
better told to go elsewhere.
"""

from dataclasses import dataclass
from typing import Final

from hybrid.scheduler.errors import Overloaded

RETRY_AFTER_S: Final = 1.0
"""What a refused client is told to wait; a gateway backs off by itself from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """``None``: no limit."""

    max_requests: int | None = None
    """Most requests in the server, running and waiting."""
    max_tokens: int | None = None
    """Most tokens of all requests in the server: of each its prompt, and the answers of
    all samples at their longest, by ``max_tokens`` or by what the context has left."""


class Admission:
    """Counts what is in the server; used within the event loop only."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits: Final = limits
        self.num_requests = 0
        self.num_tokens = 0

    def enter(self, num_tokens: int) -> "Place":
        """Take a request in.

        Raises:
            Overloaded: the server is full; names the count and the limit.
        """
        # An idle server takes anything: what can never fit is the engine's to refuse.
        if self.num_requests:
            self._check("requests", self.num_requests + 1, self._limits.max_requests)
            self._check("tokens", self.num_tokens + num_tokens, self._limits.max_tokens)
        self.num_requests += 1
        self.num_tokens += num_tokens
        return Place(self, num_tokens)

    @staticmethod
    def _check(what: str, count: int, limit: int | None) -> None:
        if limit is not None and count > limit:
            raise Overloaded(
                f"the server is full: {count} {what} in flight, at most {limit}",
                retry_after_s=RETRY_AFTER_S,
            )


class Place:
    """What one request takes of a server."""

    def __init__(self, admission: Admission, num_tokens: int) -> None:
        self._admission: Final = admission
        self._num_tokens: Final = num_tokens
        self._is_taken = True

    def leave(self) -> None:
        """Let others have it; twice is no error."""
        if self._is_taken:
            self._is_taken = False
            self._admission.num_requests -= 1
            self._admission.num_tokens -= self._num_tokens
