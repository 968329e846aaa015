"""Reads the JSON files of a Hugging Face directory."""

import json
from pathlib import Path

from hybrid.scheduler.errors import CheckpointError


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
