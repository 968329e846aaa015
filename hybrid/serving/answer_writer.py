"""Sends the messages of one call to its client, who may take its time, but not forever.

HTTP/2 lets a client keep its window shut while it answers every ping: the connection
lives, and nothing can be sent. No request may be held for that.
"""

from typing import Any, Final

from .stall_watch import StallWatch

WRITE_TIMEOUT_S: Final = 60.0
"""For one message to find room between here and its client."""


class ClientStalled(TimeoutError):
    """A client has taken nothing for a while; its call is over."""


class AnswerWriter:
    """Used by one task at a time; ``close`` it when all is said."""

    def __init__(self, context: Any) -> None:
        """Send nothing yet.

        Args:
            context: the RPC's ``grpc.aio.ServicerContext``.
        """
        self._context: Final = context
        self._watch: Final = StallWatch(WRITE_TIMEOUT_S)
        self._has_begun = False

    async def begin(self) -> None:
        """Send the headers; a client may wait for them."""
        await self._context.send_initial_metadata(())
        self._has_begun = True

    async def write(self, message: Any) -> None:
        """Send the next message.

        Raises:
            ClientStalled: there was no room for it within ``WRITE_TIMEOUT_S``.
        """
        try:
            with self._watch:
                if not self._has_begun:
                    # Beside a message that waits, gRPC would send them a second time
                    # with the status, and fail.
                    await self.begin()
                await self._context.write(message)
        except TimeoutError:
            raise ClientStalled(
                f"the client has taken no message for {WRITE_TIMEOUT_S:g} s"
            ) from None

    def close(self) -> None:
        """Leave nothing behind in the event loop."""
        self._watch.close()
