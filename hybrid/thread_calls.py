"""Functions that an event loop has run in the engine's thread, and waits for."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

T = TypeVar("T")
Command = Callable[[], None]


class ThreadCalls:
    """Answers that are still to come; used in the event loop."""

    def __init__(
        self, send: Callable[[Command], None], to_loop: Callable[[Command], None]
    ) -> None:
        """Begin without any.

        Args:
            send: has the thread call a command.
            to_loop: has the loop call one; called in the thread.
        """
        self._send: Final = send
        self._to_loop: Final = to_loop
        self._answers: Final[set[asyncio.Future[Any]]] = set()

    async def run(self, function: Callable[[], T]) -> T:
        """Have the thread call ``function``; what it returns.

        Raises:
            Exception: the error of ``fail_all``.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def command() -> None:
            value = function()
            self._to_loop(partial(_settle, answer, value))

        self._answers.add(answer)
        try:
            self._send(command)
            return await answer
        finally:
            self._answers.remove(answer)

    def fail_all(self, error: Exception) -> None:
        """Answer all with an error: the thread has ended."""
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(error)


def _settle(answer: asyncio.Future[T], value: T) -> None:
    if not answer.done():
        answer.set_result(value)
