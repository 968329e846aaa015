"""Where fetched and converted models lie on disk. Creates nothing by itself.

<cache>/models/<name>/<file>      a known model, verified when it was put there
<cache>/models/<name>/incoming-*  a fetch that runs, or was killed
<cache>/converted/                checkpoints that were read from GGUF
<cache>/tokenizers/               tokenizers that it takes transformers to load
<cache>/executors/<name>/         what one executor makes of a model
"""

import os
from pathlib import Path

from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.shown_value import shown

from .catalog import KnownModel


def cache_dir() -> Path:
    """Find the cache: ``HYBRID_CACHE``, else ``hybrid`` in the user's cache folder.

    Raises:
        ConfigError: it is below the home directory of a user who has none here.
    """
    own = os.environ.get("HYBRID_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME")
    try:
        if own:
            return Path(own).expanduser()
        return (Path(shared) if shared else Path.home() / ".cache") / "hybrid"
    except RuntimeError as error:
        raise ConfigError(
            f"HYBRID_CACHE is {shown(own)}: no such home directory is known here"
            if own
            else "no home directory is known here for the cache; set HYBRID_CACHE"
        ) from error


def model_dir(name: str) -> Path:
    """Name the folder of one known model."""
    return cache_dir() / "models" / name


def converted_dir() -> Path:
    """Name the folder of checkpoints that were read from GGUF."""
    return cache_dir() / "converted"


def tokenizers_dir() -> Path:
    """Name the folder of tokenizers that it takes transformers to load."""
    return cache_dir() / "tokenizers"


def executor_cache_dir(executor: str) -> Path:
    """Name the folder of what one executor makes of models."""
    return cache_dir() / "executors" / executor


def cached_file(model: KnownModel) -> Path | None:
    """Find a model's file in the cache; ``None`` if absent.

    A file is renamed into place only after its digest was checked, so its size is
    enough to see that nobody cut it since.
    """
    path = model_dir(model.name) / model.file_name
    if path.is_file() and path.stat().st_size == model.size_bytes:
        return path
    return None
