"""``hybrid executors``: who can run a model here, and what each can do."""

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from .answer import write_now
from .table import print_table
from .verbosity import start_logging

if TYPE_CHECKING:
    from hybrid.backends.interface import Capabilities
    from hybrid.executors import ExecutorEntry


def executors(
    as_json: Annotated[bool, Option("--json", help="A JSON array instead.")] = False,
    explain: Annotated[
        bool,
        Option("--explain", help="How each would compute here, and why not otherwise."),
    ] = False,
) -> None:
    """List the executors: where each runs, in which dtypes, and what it can do."""
    from hybrid.executors import list_executors  # noqa: PLC0415 - only when it runs
    from hybrid.plugins.loader import load_plugins  # noqa: PLC0415

    # A plugin may log while it is imported; unconfigured, that would go to stdout.
    start_logging(0)
    # It may print, too; stdout is for the list.
    with redirect_stdout(sys.stderr):
        plugins = load_plugins()
        plugins.warn_of_failures()
        entries = list_executors(plugins, explain=explain)
    if as_json:
        rows = [{**_plain(entry), "available": entry.available} for entry in entries]
        write_now(json.dumps(rows, indent=2, default=str) + "\n")
        return
    if explain:
        _print_explanation(entries)
    else:
        _print_table(entries)


def _print_table(entries: Sequence["ExecutorEntry"]) -> None:
    from rich.markup import escape  # noqa: PLC0415 - only where a table is drawn
    from rich.table import Table  # noqa: PLC0415

    heads = ("name", "plugin", "available", "devices", "dtypes", "block sizes")
    table = Table(*heads, "KV order", "can", box=None)
    for entry in entries:
        if entry.capabilities is None:
            cells = ("-", "-", "-", "-", entry.reason or "")
        else:
            cells = _cells(entry.capabilities)
        available = "yes" if entry.available else "no"
        row = (entry.name, entry.plugin, available, *cells)
        table.add_row(*(escape(cell) for cell in row))
    print_table(table)


def _print_explanation(entries: Sequence["ExecutorEntry"]) -> None:
    """One row for each way to compute: the first that can be used is the one taken."""
    from rich.markup import escape  # noqa: PLC0415 - only where a table is drawn
    from rich.table import Table  # noqa: PLC0415

    table = Table("executor", "implementation", "usable", "why", box=None)
    for entry in entries:
        if not entry.available:
            table.add_row(entry.name, "-", "no", escape(entry.reason or ""))
        elif not entry.implementations:
            table.add_row(entry.name, "-", "yes", escape(entry.description))
        for way in entry.implementations:
            usable = "yes" if way.reason is None else "no"
            why = way.reason or way.description
            table.add_row(entry.name, escape(way.name), usable, escape(why))
    print_table(table)


def _cells(can: "Capabilities") -> tuple[str, str, str, str, str]:
    from hybrid.executors import describe_features  # noqa: PLC0415 - only when it runs

    return (
        ", ".join(can.devices),
        ", ".join(can.dtypes),
        ", ".join(str(size) for size in can.block_sizes),
        ", ".join(can.kv_orders),
        ", ".join(describe_features(can)),
    )


def _plain(value: Any) -> Any:
    """Turn what an executor declared into what JSON has.

    Not ``dataclasses.asdict``: it copies, which read-only mappings refuse.
    """
    if dataclasses.is_dataclass(value):
        return {
            field.name: _plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
