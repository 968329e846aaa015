"""Which token ids end an answer, from every file that says so."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from hybrid.backends.checkpoint.json_file import read_json_object
from hybrid.scheduler.errors import CheckpointError

_FILES_WITH_IDS: Final = ("generation_config.json", "config.json")


def find_eos_token_ids(
    directory: Path, token_to_id: Callable[[str], int | None]
) -> frozenset[int]:
    """The union of generation_config.json, config.json and tokenizer_config.json.

    Files disagree, and a model that is not stopped talks for ever; an id that one of
    them names ends the answer. (A GGUF's end ids stand in the generation_config.json
    that its conversion writes.)

    Args:
        directory: a Hugging Face directory.
        token_to_id: the tokenizer's; tokenizer_config.json names a token, not an id.

    Raises:
        CheckpointError: a file cannot be read, or names what is no id.
    """
    ids: set[int] = set()
    for name in _FILES_WITH_IDS:
        config = read_json_object(directory / name) or {}
        for level in (config, config.get("text_config")):
            if isinstance(level, dict):
                ids |= _ids(directory / name, level.get("eos_token_id"))
    config = read_json_object(directory / "tokenizer_config.json") or {}
    token = config.get("eos_token")
    if isinstance(token, dict):  # an AddedToken, written out
        token = token.get("content")
    if isinstance(token, str) and (index := token_to_id(token)) is not None:
        ids.add(index)
    return frozenset(ids)


def _ids(path: Path, value: object) -> set[int]:
    values = value if isinstance(value, list) else [value]
    ids: set[int] = set()
    for item in values:
        if item is None or item == -1:  # both mean "none"
            continue
        if not isinstance(item, int) or isinstance(item, bool) or item < 0:
            raise CheckpointError(f"{path}: eos_token_id holds {item!r}, no token id")
        ids.add(item)
    return ids
