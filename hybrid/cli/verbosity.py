"""How much a command says on stderr beside its answer."""

from typing import Annotated, Final

from typer import Option

Verbose = Annotated[
    int,
    Option(
        "--verbose",
        "-v",
        count=True,
        help="Statistics and events on stderr; twice for every step.",
    ),
]

_LEVELS: Final = ("warning", "info", "debug")


def start_logging(verbose: int) -> None:
    """Configure events by the number of ``-v``."""
    from hybrid.events import configure_logging  # noqa: PLC0415 - when a command runs

    configure_logging(_LEVELS[min(verbose, len(_LEVELS) - 1)])
