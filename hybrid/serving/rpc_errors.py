"""Ends an RPC with the status of whatever its handler raised."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import structlog

from hybrid.failure_reason import failure_place, failure_reason

from .status_table import Trailers, status_of

log = structlog.get_logger()


@asynccontextmanager
async def errors_as_status(context: Any) -> AsyncIterator[None]:
    """Run a handler's body; a cancelled RPC passes through.

    Args:
        context: the RPC's ``grpc.aio.ServicerContext``.
    """
    try:
        try:
            yield
        except grpc.aio.BaseError:
            # The body has chosen its status itself, or its client is gone.
            raise
        except Exception as error:  # noqa: BLE001 - the table has a line for any
            await context.abort(*reported_status(error))
    except grpc.aio.InternalError as error:
        # A write met a lost connection. gRPC would log that as a fault of the handler.
        raise asyncio.CancelledError from error


def reported_status(error: Exception) -> tuple[grpc.StatusCode, str, Trailers]:
    """As ``status_of``; what is the server's own fault is logged."""
    status = status_of(error)
    if status[0] is grpc.StatusCode.INTERNAL:
        # No traceback: some loggers add variables to it, and these hold prompts.
        log.error(
            "rpc.failed",
            reason=failure_reason(error),
            place=failure_place(error, "hybrid"),
        )
    return status
