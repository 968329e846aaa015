"""How much a command says on stderr beside its answer."""

from typing import Annotated, Final

from typer import Option

from .library_noise import hear_libraries

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
    """Configure events by the number of ``-v``; one lets libraries speak, too."""
    from hybrid.events import configure_logging  # noqa: PLC0415 - when a command runs

    if verbose:
        hear_libraries()
    configure_logging(_LEVELS[min(verbose, len(_LEVELS) - 1)])
