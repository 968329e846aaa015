"""The three standard streams, whatever the shell left of them.

A stream that was closed (``>&-``) is ``None`` in Python, and its number is given to the
next file that is opened, into which C libraries would then write their messages.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Final, TextIO

MAX_NOTE_CHARACTERS: Final = 1000
_HEAD: Final = 600
_TAIL: Final = 300
"""Of a longer note: what went wrong stands first, what to do about it last."""
_diverted: Final[ContextVar[TextIO | None]] = ContextVar("diverted", default=None)
"""The true stdout while prints are diverted."""


def open_missing_streams() -> None:
    """Put the null device where a stream was closed, and in place of a closed stderr.

    ``sys.stdin`` and ``sys.stdout`` stay ``None``: whoever needs them says so.
    """
    # Each open takes the lowest free number, so this fills every hole below 3.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # as the standard streams are
    os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - to the end


def stdout() -> TextIO:
    """The stream for answers, whoever has diverted what is printed."""
    return _diverted.get() or sys.stdout


@contextmanager
def divert_prints() -> Iterator[None]:
    """Leave stdout to answers: what plugins and libraries print goes to stderr."""
    token = _diverted.set(stdout())
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _diverted.reset(token)


def stdin() -> TextIO:
    """Return standard input.

    Raises:
        InvalidRequest: it is closed.
    """
    if sys.stdin is None:
        from hybrid.scheduler.errors import InvalidRequest  # noqa: PLC0415 - light start

        raise InvalidRequest("standard input is closed", field="prompt")
    return sys.stdin


def note(line: str) -> None:
    """Write one line to stderr, cut in the middle if a caller's value made it long.

    A stderr that takes nothing (closed, full, its reader gone) changes nothing: the
    answer is on stdout.
    """
    if len(line) > MAX_NOTE_CHARACTERS:
        line = f"{line[:_HEAD]} ... {line[-_TAIL:]}"
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
