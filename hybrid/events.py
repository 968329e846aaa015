"""How events are written. Entry points call this; importing configures nothing.

Modules log through ``structlog.get_logger()``. A program that embeds the engine keeps
its own configuration of structlog.
"""

import logging
import sys
from contextlib import suppress
from typing import Any, Final, TextIO

import structlog

from hybrid.scheduler.errors import ConfigError

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure_logging(
    level: str = "warning",
    *,
    as_json: bool | None = None,
    stream: TextIO | None = None,
) -> None:
    """Send the events of this process to a stream, for people or for programs.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        as_json: one JSON object a line; ``None``: unless the stream is a terminal.
        stream: ``None`` is stderr, for stdout carries answers.

    Raises:
        ConfigError: the level is unknown.
    """
    if level not in LEVELS:
        raise ConfigError(f"log level is {level!r}, must be one of {', '.join(LEVELS)}")
    target = _EventStream(stream)
    at_terminal = target.isatty()
    plain = not at_terminal if as_json is None else as_json
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_renderers(plain=plain, colors=at_terminal),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(target),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )


def configure_if_unset(level: str = "info") -> None:
    """Configure as ``configure_logging`` does, unless the program has already done so.

    structlog's own default would write every debug event to stdout.
    """
    if not structlog.is_configured():
        configure_logging(level)


class _EventStream:
    """What ``print`` asks of a file, over a stream that may be gone.

    stderr is looked up anew for each event, for it may be replaced and closed (by a
    test runner, a notebook), or be absent: then nothing is written, least of all to
    stdout. That an event cannot be written must not end what it tells of.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream: Final = stream

    def isatty(self) -> bool:
        """Whether people read it."""
        stream = self._current()
        return stream is not None and stream.isatty()

    def write(self, text: str) -> None:
        """Write if it can be written."""
        stream = self._current()
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.write(text)

    def flush(self) -> None:
        """Flush if it can be flushed."""
        stream = self._current()
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.flush()

    def _current(self) -> TextIO | None:
        return sys.stderr if self._stream is None else self._stream


def _renderers(*, plain: bool, colors: bool) -> list[Any]:
    if plain:
        return [
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(default=str, sort_keys=False),
        ]
    traceback = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=traceback)]
