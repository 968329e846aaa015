"""Hands one request's outputs from the engine's thread to a reader in an event loop.

Outputs repeat what earlier ones said, so only the newest is kept: a slow reader sees
fewer, larger steps, stalls nobody, and takes no memory.
"""

import asyncio

from .outputs import RequestOutput


class OutputMailbox:
    """Room for one output or one error; used inside the event loop only."""

    def __init__(self) -> None:
        self._output: RequestOutput | None = None
        self._error: Exception | None = None
        self._is_filled = asyncio.Event()
        self.is_aborted = False
        """Whether the request was aborted, perhaps before the engine knew of it."""

    def put(self, output: RequestOutput) -> None:
        """Leave an output; it replaces one that was not read."""
        self._output = output
        self._is_filled.set()

    def fail(self, error: Exception) -> None:
        """Leave an error; it is raised once the output before it was read."""
        self._error = error
        self._is_filled.set()

    async def get(self) -> RequestOutput:
        """Wait for an output newer than the last one read.

        Raises:
            Exception: the error that was left.
        """
        await self._is_filled.wait()
        output, self._output = self._output, None
        if output is None:
            assert self._error is not None
            raise self._error
        if self._error is None:
            self._is_filled.clear()
        return output
