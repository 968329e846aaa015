"""Reads the JSON files of a Hugging Face directory."""

import json
from collections import Counter
from pathlib import Path

from hybrid.scheduler.errors import CheckpointError
from hybrid.scheduler.shown_value import shown


def read_json_object(path: Path) -> dict[str, object] | None:
    """The object in ``path``, ``None`` if there is no such file.

    Raises:
        CheckpointError: it cannot be read, or holds something else.
    """
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is no JSON file: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return value


def without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Make an object of ``pairs``; for ``json.loads(object_pairs_hook=...)``.

    Of a name that is there twice, readers take one or the other in silence.

    Raises:
        ValueError: a name is there twice.
    """
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = Counter(names).most_common(1)[0][0]
        raise ValueError(f"{shown(twice)} is there twice")
    return value
