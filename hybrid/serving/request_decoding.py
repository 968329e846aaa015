"""Every call ends by a status of ours, from the first byte of its request on.

gRPC's own status of an error in reading a request, or in a handler, is UNKNOWN.
"""

from typing import Any

import grpc
from google.protobuf.message import DecodeError

from hybrid.scheduler import InvalidRequest

from .rpc_errors import errors_as_status


def decode(message_class: Any, data: bytes) -> Any:
    """Read a message.

    Raises:
        InvalidRequest: the bytes are none of its type.
    """
    return _decode(message_class.FromString, data)


def with_statuses(handler: Any) -> Any:
    """Return the same method handler; what reading or answering raises is a status.

    A handler of a stream of requests is returned as it is: it reads them itself.
    """
    read = handler.request_deserializer
    if handler.request_streaming or read is None:
        return handler
    if handler.response_streaming:
        make, answer = grpc.unary_stream_rpc_method_handler, handler.unary_stream
    else:
        make, answer = grpc.unary_unary_rpc_method_handler, handler.unary_unary

    async def call(data: bytes, context: Any) -> Any:
        async with errors_as_status(context):
            return await answer(_decode(read, data), context)

    return make(call, response_serializer=handler.response_serializer)


def _decode(read: Any, data: bytes) -> Any:
    try:
        return read(data)
    except DecodeError:
        raise InvalidRequest(
            f"the request's {len(data)} bytes are no message of its type"
        ) from None
