"""Hands one request's outputs from the engine's thread to a reader in an event loop.

Outputs repeat what earlier ones said, so only the newest is kept: a slow reader sees
fewer, larger steps, stalls nobody, and takes no memory. So does one whose outputs are
held back until ``let_go``.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from .early_end import aborted
from .outputs import RequestOutput


class OutputMailbox:
    """Room for one output or one error; used inside the event loop only."""

    def __init__(
        self, ended: Callable[[], None] | None = None, *, stream: bool = True
    ) -> None:
        """Begin empty.

        Args:
            ended: called with the last output or the error, read or not.
            stream: whether the reader wants more than beginnings and ends.
        """
        self._ended: Final = ended
        self._stream: Final = stream
        self._output: RequestOutput | None = None
        self._is_held = False
        """Whether ``_output`` is not to be read yet."""
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

    def put(self, output: RequestOutput) -> bool:
        """Leave an output; it replaces one that was not read.

        Where an answer begins or ends, it can be read at once.

        Returns:
            Whether the reader waits for ``let_go`` from now on.
        """
        if self.is_aborted and not output.finished:
            output = aborted(output)
        before, has_unread = self._newest, self._output is not None
        assert before is not None, "the request was taken before it was answered"
        self._output = self._newest = output
        if output.finished or _has_turned(before, output):
            self.let_go()
            if output.finished:
                self._tell_end()
            return False
        # What can be read may well be read with this; the reader is on its way.
        self._is_held = self._is_held or not has_unread
        return self._stream and not has_unread

    def let_go(self) -> None:
        """Let the reader have what there is; nothing is no error."""
        self._is_held = False
        if self._output is not None:
            self._wake()

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
        """Wait for an output newer than the last one read, and not held back.

        Raises:
            Exception: the error that was left.
        """
        if (self._output is None or self._is_held) and self._error is None:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        output, self._output = self._output, None
        if output is None:
            assert self._error is not None
            raise self._error
        return output


def _has_turned(before: RequestOutput, after: RequestOutput) -> bool:
    """Whether a sample has got its first token, or its last."""
    if len(before.outputs) != len(after.outputs):
        return True
    for old, new in zip(before.outputs, after.outputs, strict=True):
        if not old.token_ids or new.finish_reason is not old.finish_reason:
            return True
    return False
