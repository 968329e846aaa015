"""Ctrl-C as a question instead of an exception, while an answer streams."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class InterruptFlag:
    """Set by the first Ctrl-C, so that no engine step is cut in the middle.

    A second one raises ``KeyboardInterrupt`` as usual. Outside the main thread, where
    Python takes no signals, it is never set.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._previous: Any = None

    def is_set(self) -> bool:
        """Whether Ctrl-C was pressed since the ``with`` began."""
        return self._is_set

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_set:
            raise KeyboardInterrupt
        self._is_set = True
