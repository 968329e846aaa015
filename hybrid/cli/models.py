"""``hybrid pull`` and ``hybrid models``: what there is, and what is here."""

import json
from typing import Annotated, Any

from typer import Argument, Option

from .answer import write_now
from .progress import show_progress
from .table import print_table


def pull(
    name: Annotated[str, Argument(help="A known name; `hybrid models` lists them.")],
) -> None:
    """Fetch a known model into the cache, verified; prints where it lies."""
    from hybrid.models import pull as fetch  # noqa: PLC0415 - only when it runs

    with show_progress() as progress:
        path = fetch(name, progress=progress)
    write_now(f"{path}\n")


def models(
    as_json: Annotated[bool, Option("--json", help="A JSON array instead.")] = False,
) -> None:
    """List the known models and where those that are here lie."""
    rows = _rows()
    if as_json:
        write_now(json.dumps(rows, indent=2) + "\n")
        return
    from rich.filesize import decimal  # noqa: PLC0415 - only where a table is drawn
    from rich.table import Table  # noqa: PLC0415

    table = Table("name", "description", "size", "license", "cached", box=None)
    for row in rows:
        cells = (row["name"], row["description"], decimal(row["size_bytes"]))
        table.add_row(*cells, row["license"], row["path"] or "no")
    print_table(table)


def _rows() -> list[dict[str, Any]]:
    from hybrid.models import KNOWN_MODELS, find_local  # noqa: PLC0415 - when it runs

    rows: list[dict[str, Any]] = []
    for model in KNOWN_MODELS:
        path = find_local(model)
        rows.append(
            {
                "name": model.name,
                "description": model.description,
                "size_bytes": model.size_bytes,
                "license": model.license,
                "source": model.requirement,
                "path": None if path is None else str(path),
            }
        )
    return rows
