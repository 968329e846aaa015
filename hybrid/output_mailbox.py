"""Hands one request's outputs from the engine's thread to a reader in an event loop.

Outputs repeat what earlier ones said, so only the newest is kept: a slow reader sees
fewer, larger steps, stalls nobody, and takes no memory.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from .early_end import aborted
from .outputs import RequestOutput


class OutputMailbox:
    """Room for one output or one error; used inside the event loop only."""

    def __init__(self, ended: Callable[[], None] | None = None) -> None:
        """Begin empty.

        Args:
            ended: called with the last output or the error, read or not.
        """
        self._ended: Final = ended
        self._output: RequestOutput | None = None
        self._newest: RequestOutput | None = None
        """As ``_output``, but kept when it is read; ``None``: ``begin`` is to come."""
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        """Set while one waits. An ``asyncio.Event`` would cost each token more."""
        self.is_aborted = False
        """Whether the request was aborted, perhaps before the engine knew of it."""

    def begin(self, output: RequestOutput) -> None:
        """Take an answer that has not begun; it is read only if it is aborted."""
        self._newest = output
        if self.is_aborted:
            self.put(output)

    def put(self, output: RequestOutput) -> None:
        """Leave an output; it replaces one that was not read."""
        if self.is_aborted and not output.finished:
            output = aborted(output)
        self._output = self._newest = output
        self._wake()
        if output.finished:
            self._tell_end()

    def abort(self) -> None:
        """Have what there is be the last output, however long the engine's step takes.

        What the engine says of it later is read by nobody.
        """
        self.is_aborted = True
        if self._newest is not None and not self._newest.finished:
            self.put(self._newest)

    def fail(self, error: Exception) -> None:
        """Leave an error; it is raised once the output before it was read."""
        self._error = error
        self._wake()
        self._tell_end()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _tell_end(self) -> None:
        if self._ended is not None:
            self._ended()

    async def get(self) -> RequestOutput:
        """Wait for an output newer than the last one read.

        Raises:
            Exception: the error that was left.
        """
        if self._output is None and self._error is None:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        output, self._output = self._output, None
        if output is None:
            assert self._error is not None
            raise self._error
        return output
