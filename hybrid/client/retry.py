"""When a call that failed is made again, and for how long.

Only before anything of an answer has come, and only for what another moment may change:
a server that is full, or is not there yet.
"""

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from hybrid.scheduler.errors import ConfigError

from .rpc_failed import RpcFailed

RETRIED: Final = ("UNAVAILABLE", "RESOURCE_EXHAUSTED")
_MAX_DOUBLINGS: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How patient a client is.

    Raises:
        ConfigError: a value is negative or no number.
    """

    max_retries: int = 4
    """0: a call is made once."""
    first_wait_s: float = 0.1
    """Doubled by each retry; what is waited is drawn from half of it up to all."""
    max_wait_s: float = 5.0
    """Longest wait of our own choice, and the longest that a server may ask for: one
    that wants more is not asked again."""

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("max_retries", "first_wait_s", "max_wait_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ConfigError(f"retry.{name} is {value}, must be 0 or more")


class Attempts:
    """One call's attempts within its time."""

    def __init__(
        self,
        policy: RetryPolicy,
        timeout_s: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The time runs from here.

        Args:
            policy: how often and how long.
            timeout_s: for all attempts and the waits between; ``None``: no end.
            clock: seconds.
        """
        self._policy: Final = policy
        self._clock: Final = clock
        self._end_s: Final = math.inf if timeout_s is None else clock() + timeout_s
        self._num_retries = 0
        self.has_begun = False
        """Whether part of the answer has come: what failed then stays failed."""

    @property
    def remaining_s(self) -> float | None:
        """What the next attempt may take; ``None``: no end."""
        if math.isinf(self._end_s):
            return None
        return max(self._end_s - self._clock(), 0.0)

    def next_wait_s(self, failure: RpcFailed) -> float:
        """How long to wait before the next attempt.

        Raises:
            Exception: there is none to be made: what ``failure`` stands for.
        """
        policy, remaining_s = self._policy, self.remaining_s
        may_help = failure.code in RETRIED and not failure.is_too_large
        asked_s = failure.retry_after_s or 0.0
        wait_s = asked_s + self._drawn_s()
        if (
            self.has_begun
            or not may_help
            or self._num_retries >= policy.max_retries
            or asked_s > policy.max_wait_s
            or (remaining_s is not None and wait_s >= remaining_s)
        ):
            _raise(failure)
        self._num_retries += 1
        return wait_s

    def _drawn_s(self) -> float:
        """Drawn, so that clients who were refused together do not come back so."""
        policy = self._policy
        longest_s = policy.first_wait_s * 2.0 ** min(self._num_retries, _MAX_DOUBLINGS)
        return min(longest_s, policy.max_wait_s) * random.uniform(0.5, 1.0)


def _raise(failure: RpcFailed) -> NoReturn:
    error = failure.as_error()
    if error is failure:
        raise failure
    raise error from failure
