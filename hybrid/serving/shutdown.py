"""When and why a server ends: a signal, or the death of one of its parts."""

import asyncio
import signal
from types import TracebackType
from typing import Any, Final, Self

import structlog

log = structlog.get_logger()

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Ending:
    """Asked for once, by whoever comes first.

    As a context manager it takes SIGTERM and SIGINT: the first is an orderly end, the
    second, of either kind, ends the process at once. One that the process was started
    to ignore stays ignored.
    """

    def __init__(self) -> None:
        self._is_asked: Final = asyncio.Event()
        self.error: str | None = None
        """What failed; ``None``: the server was told to end."""

    @property
    def is_asked(self) -> bool:
        """Whether the server is to end."""
        return self._is_asked.is_set()

    def ask(self) -> None:
        """End the server, in order."""
        self._is_asked.set()

    def fail(self, error: str) -> None:
        """End the server because a part of it has ended; an end under way goes on."""
        if not self.is_asked:
            self.error = error
            log.error("server.failed", reason=error)
        self._is_asked.set()

    async def wait(self) -> None:
        """Return once the server is to end."""
        await self._is_asked.wait()

    async def wait_or(self, other: asyncio.Future[Any]) -> None:
        """Return once the server is to end, or something else is done."""
        asked = asyncio.create_task(self.wait())
        await asyncio.wait({asked, other}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._take, number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # To the end of the process: what comes now finds a server that is gone.
        self._leave_to_kernel()

    def _take(self, number: signal.Signals) -> None:
        log.info("server.told_to_end", signal=number.name)
        # Before all else: a second signal must work whatever the first one runs into.
        self._leave_to_kernel()
        self.ask()

    @staticmethod
    def _leave_to_kernel() -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            if loop.remove_signal_handler(number):
                signal.signal(number, signal.SIG_DFL)
