"""A handler that refuses a call before its service hears of it."""

from collections.abc import AsyncIterator
from typing import Any

import grpc


def deny(code: grpc.StatusCode, message: str) -> Any:
    """Make a method handler that ends its call by a status.

    It streams both ways, which suits every method: a call that ends by a status has no
    other answer, and need not be read.
    """

    async def abort(_requests: AsyncIterator[bytes], context: Any) -> None:
        await context.abort(code, message)

    return grpc.stream_stream_rpc_method_handler(abort)
