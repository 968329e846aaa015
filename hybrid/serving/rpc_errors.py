"""Ends an RPC with the status of whatever its handler raised."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import structlog

from .status_table import is_foreseen, status_of

log = structlog.get_logger()


@asynccontextmanager
async def errors_as_status(context: Any) -> AsyncIterator[None]:
    """Run a handler's body; a cancelled RPC passes through.

    Args:
        context: the RPC's ``grpc.aio.ServicerContext``.
    """
    try:
        yield
    except grpc.aio.AbortError:
        # The body has chosen its status itself.
        raise
    except Exception as error:
        if not is_foreseen(error):
            log.exception("rpc.failed", error=type(error).__name__)
        await context.abort(*status_of(error))
