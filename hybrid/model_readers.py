"""Who else reads a model's directory that the chosen executor does not."""

from pathlib import Path

from hybrid.scheduler import CheckpointError, ModelNotFound

from .executors import list_executors
from .plugins.manager import PluginManager


def with_readers(
    error: CheckpointError, plugins: PluginManager, model: str | None, chosen: str
) -> CheckpointError:
    """Name in an error those whose own compiled form a directory holds.

    Imports and asks every executor: for errors alone.

    Args:
        error: why the chosen executor has no model.
        plugins: that offer executors.
        model: as the user called it.
        chosen: name of the executor.

    Returns:
        A new error, or the same where nobody else reads the directory.
    """
    folder = _directory(model)
    if folder is None:
        return error
    readers = [
        f"executor {entry.name!r} reads the {file} in it"
        for entry in list_executors(plugins)
        if entry.capabilities is not None and entry.name != chosen
        for file in entry.capabilities.model_files
        if (folder / file).is_file()
    ]
    if not readers:
        return error
    kind = ModelNotFound if isinstance(error, ModelNotFound) else CheckpointError
    return kind(f"{error}; {', '.join(readers)}")


def _directory(model: str | None) -> Path | None:
    try:
        folder = None if model is None else Path(model).expanduser()
    except RuntimeError:
        # There is no such home directory.
        return None
    return folder if folder is not None and folder.is_dir() else None
