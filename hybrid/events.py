"""How events are written. Entry points call this; importing configures nothing.

Modules log through ``structlog.get_logger()``. A program that embeds the engine keeps
its own configuration of structlog.
"""

import logging
import sys
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
    target = sys.stderr if stream is None else stream
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
        # stderr is looked up anew for each event, for it may be replaced and closed
        # (by a test runner, a notebook); a cached logger would keep the old one.
        logger_factory=lambda *_: structlog.PrintLogger(stream or sys.stderr),
        cache_logger_on_first_use=False,
    )


def configure_if_unset(level: str = "info") -> None:
    """Configure as ``configure_logging`` does, unless the program has already done so.

    structlog's own default would write every debug event to stdout.
    """
    if not structlog.is_configured():
        configure_logging(level)


def _renderers(*, plain: bool, colors: bool) -> list[Any]:
    if plain:
        return [
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(default=str, sort_keys=False),
        ]
    traceback = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=traceback)]
