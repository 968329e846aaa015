"""From what a user calls a model to its files on disk.

a path (has a separator, or starts with . or ~)   the directory or the file
a known name                                      fetched if absent
anything that exists here                         the directory or the file
owner/name                                        the Hugging Face hub
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.scheduler.errors import InvalidRequest, ModelNotFound

from .catalog import KNOWN_MODELS, find_known_model, known_name_hint
from .hub import fetch_from_hub, is_hub_id
from .model_pull import pull

if TYPE_CHECKING:
    # At run time it would bring numpy along.
    from hybrid.backends.interface import ProgressCallback

_GGUF_MAGIC: Final = b"GGUF"


def resolve_model(
    name: str | os.PathLike[str],
    *,
    progress: "ProgressCallback | None" = None,
    revision: str | None = None,
    compiled_files: Sequence[str] = (),
) -> ModelSource:
    """Find a model's files, fetching them if they are not here.

    Args:
        name: a known name, a directory with config.json, a .gguf file, a directory
            that holds exactly one, or a Hugging Face id ``owner/name``. A path that
            exists wins over an id; a known name wins over a path of the same name,
            which ``./name`` reaches.
        progress: told of what is fetched, in bytes.
        revision: branch, tag or commit on the hub; ignored for anything else.
        compiled_files: names of files that make a directory the chosen executor's own
            compiled form.

    Raises:
        ModelNotFound: nothing answers to the name; lists what was tried.
        CheckpointError: a known model cannot be fetched.
    """
    name = os.fspath(name)
    if not name.strip():
        raise InvalidRequest(
            f"model is {name!r}, must be a name or a path", field="model", value=name
        )
    known = find_known_model(name)
    if known is not None:
        path = pull(known.name, progress=progress)
        return ModelSource(known.name, path, CheckpointFormat.GGUF)
    path = _expand_home(name)
    if path.exists():
        return _from_path(name, path, compiled_files)
    if not is_hub_id(name):
        raise _not_found(name, "not of the form owner/name, so not a Hugging Face id")
    try:
        folder = fetch_from_hub(name, revision=revision, progress=progress)
    except ModelNotFound as error:
        raise _not_found(name, str(error).removeprefix(f"{name}: ")) from error
    return _from_path(name, folder, compiled_files)


def _expand_home(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise ModelNotFound(
            f"no model {name!r}: no such home directory is known here"
        ) from error


def _from_path(name: str, path: Path, compiled_files: Sequence[str]) -> ModelSource:
    if path.is_dir():
        if any((path / file).is_file() for file in compiled_files):
            return ModelSource(name, path, CheckpointFormat.COMPILED)
        return _from_directory(name, path)
    if path.suffix == ".gguf" or _starts_as_gguf(path):
        return ModelSource(name, path, CheckpointFormat.GGUF)
    raise ModelNotFound(f"{name} is a file, but not GGUF")


def _from_directory(name: str, path: Path) -> ModelSource:
    has_config = (path / "config.json").is_file()
    ggufs = sorted(path.glob("*.gguf"))
    # Repositories of GGUF files often carry a config.json without weights beside it.
    if has_config and (any(path.glob("*.safetensors")) or not ggufs):
        return ModelSource(name, path, CheckpointFormat.HF_DIRECTORY)
    if len(ggufs) == 1:
        return ModelSource(name, ggufs[0], CheckpointFormat.GGUF)
    if ggufs:
        names = ", ".join(file.name for file in ggufs)
        raise ModelNotFound(
            f"{name} holds {len(ggufs)} GGUF files, name one of them: {names}"
        )
    raise ModelNotFound(f"{name} is a directory without config.json and without GGUF")


def _starts_as_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}") from error


def _not_found(name: str, hub: str) -> ModelNotFound:
    known = ", ".join(model.name for model in KNOWN_MODELS)
    return ModelNotFound(
        f"no model {name!r}: not a known name ({known}), no such file or directory "
        f"here, {hub}{known_name_hint(name)}"
    )
