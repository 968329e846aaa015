"""The command line: which commands there are."""

from typing import Annotated

from typer import Exit, Option, Typer

from hybrid._version import __version__

from .answer import write_now
from .bench import bench
from .build import build
from .chat import chat
from .executors import executors
from .generate import generate
from .models import models, pull
from .plugins import plugins
from .serve import serve

app = Typer(
    name="hybrid",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        write_now(f"hybrid {__version__}\n")
        raise Exit


@app.callback()
def hybrid(
    version: Annotated[
        bool,
        Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and leave.",
        ),
    ] = False,
) -> None:
    """One paged scheduler, any executor: run language models."""


for _command in (generate, chat, serve, build, bench, pull, models, executors, plugins):
    app.command()(_command)
