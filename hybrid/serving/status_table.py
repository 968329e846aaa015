"""Which gRPC status an error becomes: one table for every service."""

from typing import Final

import grpc

from hybrid.scheduler.errors import (
    CheckpointError,
    ConfigError,
    DuplicateRequest,
    EngineClosed,
    EngineFailed,
    FormFailed,
    HybridError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    SamplingFailed,
    UnsupportedFeature,
)
from hybrid.wire.retry_hint import RETRY_AFTER

Trailers = tuple[tuple[str, str], ...]

STATUS_OF_ERROR: Final[dict[type[BaseException], grpc.StatusCode]] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    DuplicateRequest: grpc.StatusCode.ALREADY_EXISTS,
    # What a request asks of an executor that cannot do it: another request may pass.
    UnsupportedFeature: grpc.StatusCode.INVALID_ARGUMENT,
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ModelNotFound: grpc.StatusCode.NOT_FOUND,
    # The engine is gone: a gateway asks another one.
    EngineClosed: grpc.StatusCode.UNAVAILABLE,
    EngineFailed: grpc.StatusCode.UNAVAILABLE,
    TimeoutError: grpc.StatusCode.DEADLINE_EXCEEDED,
    # Of the request's own making, though nothing in it is malformed.
    FormFailed: grpc.StatusCode.FAILED_PRECONDITION,
    # The server's own faults, met while a request runs.
    SamplingFailed: grpc.StatusCode.INTERNAL,
    CheckpointError: grpc.StatusCode.INTERNAL,
    ConfigError: grpc.StatusCode.INTERNAL,
    HybridError: grpc.StatusCode.INTERNAL,
}
"""A class stands for those below it that have no line of their own."""

MAX_MESSAGE_CHARACTERS: Final = 500
"""A message travels in the trailers, percent-encoded (up to 12 bytes a character);
clients take 8 KiB of them."""
CONSTRAINT_FAILED: Final = "smg-constraint-failed"
"""Tells a gateway that an answer broke off by its form, and who found that."""


def status_of(error: BaseException) -> tuple[grpc.StatusCode, str, Trailers]:
    """What a client is told of an error.

    Returns:
        Code, message and trailing metadata, as ``ServicerContext.abort`` takes them.
        An error that nobody foresaw is ``INTERNAL`` and shows its class alone: its
        text may hold what is no client's business.
    """
    trailers: Trailers = ()
    if isinstance(error, Overloaded):
        trailers = ((RETRY_AFTER, str(round(error.retry_after_s * 1000))),)
    elif isinstance(error, FormFailed):
        trailers = ((CONSTRAINT_FAILED, "engine"),)
    for kind in type(error).__mro__:
        code = STATUS_OF_ERROR.get(kind)
        if code is not None:
            return code, _sendable(str(error)), trailers
    return (
        grpc.StatusCode.INTERNAL,
        f"internal error ({type(error).__name__})",
        trailers,
    )


def _sendable(message: str) -> str:
    """Cut it to what trailers hold; half a surrogate pair cannot be sent at all."""
    if len(message) > MAX_MESSAGE_CHARACTERS:
        message = message[: MAX_MESSAGE_CHARACTERS - 1] + "…"
    return message.encode("utf-8", "replace").decode("utf-8")
