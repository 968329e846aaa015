"""A table on stdout: fitted to a terminal, one line a row anywhere else."""

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.table import Table

_UNBOUNDED: Final = 10_000
"""Columns; wider than any row."""


def print_table(table: "Table") -> None:
    """Write a table; a program that reads it finds one row a line."""
    from rich.console import Console  # noqa: PLC0415 - only where a table is drawn

    width = None if sys.stdout.isatty() else _UNBOUNDED
    Console(file=sys.stdout, width=width).print(table)
