"""``hybrid plugins``: what is installed, and what became of it."""

import dataclasses
import json
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from .answer import write_now
from .table import print_table
from .verbosity import start_logging

if TYPE_CHECKING:
    from hybrid.plugins.plugin_record import PluginRecord


def plugins(
    as_json: Annotated[bool, Option("--json", help="A JSON array instead.")] = False,
) -> None:
    """List the plugins: what each offers, or why it is not loaded."""
    from hybrid.plugins.loader import load_plugins  # noqa: PLC0415 - only when it runs

    start_logging(0)
    # A plugin may print while it is imported; stdout is for the list.
    with redirect_stdout(sys.stderr):
        records = load_plugins().records
    if as_json:
        write_now(json.dumps([_row(record) for record in records], indent=2) + "\n")
        return
    from rich.markup import escape  # noqa: PLC0415 - only where a table is drawn
    from rich.table import Table  # noqa: PLC0415

    heads = ("name", "distribution", "version", "API", "status", "executors")
    table = Table(
        *heads, "schedulers", "logits processors", "hooks or reason", box=None
    )
    for record in records:
        table.add_row(*(escape(cell) for cell in _cells(record)))
    print_table(table)


def _row(record: "PluginRecord") -> dict[str, Any]:
    fields = dataclasses.asdict(record)
    return {**fields.pop("source"), **fields}


def _cells(record: "PluginRecord") -> tuple[str, ...]:
    version = record.api_version
    offers = (record.executors, record.schedulers, record.logits_processors)
    hooks = ", ".join(name.removeprefix("hybrid_") for name in record.hooks)
    return (
        record.source.name,
        record.source.distribution,
        record.source.version,
        "-" if version is None else f"{version[0]}.{version[1]}",
        record.status.value,
        *(", ".join(names) or "-" for names in offers),
        record.reason or hooks or "-",
    )
