"""Signals: Ctrl-C as a question while an answer streams, SIGTERM as an orderly end."""

import os
import signal
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn, Self

EXIT_INTERRUPTED: Final = 128 + signal.SIGINT
EXIT_TERMINATED: Final = 128 + signal.SIGTERM
_SHOW_CURSOR: Final = b"\x1b[?25h"
"""Progress bars hide it."""


class InterruptFlag:
    """Set by the first Ctrl-C, so that no engine step is cut in the middle.

    A second one raises ``KeyboardInterrupt`` as usual. Outside the main thread, where
    Python takes no signals, it is never set; nor where the process was started to
    ignore Ctrl-C, as shells do for what runs in the background.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._previous: Any = None

    def is_set(self) -> bool:
        """Whether Ctrl-C was pressed since the ``with`` began."""
        return self._is_set

    def __enter__(self) -> Self:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
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

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_set:
            _interrupt(number, frame)
        self._is_set = True


def take_signals() -> None:
    """Make SIGINT and SIGTERM leave like exceptions, so that all is tidied up.

    A second SIGTERM ends the process at once. What is ignored stays so. Only for a
    process of our own.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def _interrupt(_number: int, frame: FrameType | None) -> NoReturn:
    if _is_importing(frame):
        _leave_at_once(EXIT_INTERRUPTED, b"error: interrupted\n")
    raise KeyboardInterrupt


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)
    if _is_importing(frame):
        _leave_at_once(EXIT_TERMINATED)
    raise SystemExit(EXIT_TERMINATED)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported.

    Some C++ libraries abort the process when Python raises while they set themselves
    up (seen: ``terminate called ...`` from torch).
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _leave_at_once(code: int, line: bytes = b"") -> NoReturn:
    """End without an exception; imports leave nothing to tidy up but the cursor."""
    # Not by sys.stderr, in whose middle the signal may have come.
    with suppress(OSError):
        os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + line)
    os._exit(code)
