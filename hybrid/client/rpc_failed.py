"""From the status of a failed call to the error that it stands for.

The inverse of the server's table, with lines for what other servers send.
"""

from collections.abc import Callable
from typing import Any, Final

from hybrid.scheduler.errors import (
    DuplicateRequest,
    EngineClosed,
    HybridError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    UnsupportedFeature,
)
from hybrid.wire.retry_hint import RETRY_AFTER

DEFAULT_RETRY_AFTER_S: Final = 1.0
"""For a server that is full and does not say when to come back."""
_MAX_RETRY_AFTER_MS: Final = 86_400_000
_TOO_LARGE: Final = "larger than max"
"""Of gRPC's own words for a message over a limit, whose status is that of a full
server. Source: grpc 1.85 (``message_size_filter.cc``)."""


class RpcFailed(HybridError):
    """A call failed with a status; raised itself where no other error says it better.

    Every error that a client raises for a failed call has it as its ``__cause__``.

    Attributes:
        code: the name of the gRPC status, as ``UNAVAILABLE``.
        details: what the server said.
        retry_after_s: when the server wants to be asked again; ``None``: it said
            nothing.
    """

    def __init__(
        self, code: str, details: str, *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{details or 'the call failed'} ({code})")
        self.code = code
        self.details = details
        self.retry_after_s = retry_after_s

    @classmethod
    def of(cls, error: Any) -> "RpcFailed":
        """Read a ``grpc.RpcError`` of a call, of either kind of channel."""
        trailers = error.trailing_metadata() or ()
        hints = [value for key, value in trailers if key == RETRY_AFTER]
        return cls(
            error.code().name,
            error.details() or "",
            retry_after_s=_seconds(hints[0]) if hints else None,
        )

    @property
    def is_too_large(self) -> bool:
        """Whether a message was over a limit: no server has room for it later."""
        return self.code == "RESOURCE_EXHAUSTED" and _TOO_LARGE in self.details

    def as_error(self) -> Exception:
        """The error to raise, whose cause is this one."""
        if self.is_too_large:
            return InvalidRequest(self.details)
        if self.code == "RESOURCE_EXHAUSTED":
            after_s = self.retry_after_s
            return Overloaded(
                self.details,
                retry_after_s=DEFAULT_RETRY_AFTER_S if after_s is None else after_s,
            )
        make = _ERRORS.get(self.code)
        return self if make is None else make(self.details)


_ERRORS: Final[dict[str, Callable[[str], Exception]]] = {
    "INVALID_ARGUMENT": InvalidRequest,
    "OUT_OF_RANGE": InvalidRequest,
    "ALREADY_EXISTS": DuplicateRequest,
    "NOT_FOUND": ModelNotFound,
    "UNIMPLEMENTED": UnsupportedFeature,
    "UNAVAILABLE": EngineClosed,
    "DEADLINE_EXCEEDED": TimeoutError,
}


def _seconds(milliseconds: str | bytes) -> float | None:
    try:
        number = int(milliseconds)
    except ValueError:
        return None
    return min(max(number, 0), _MAX_RETRY_AFTER_MS) / 1000
