"""Converts a GGUF once into a Hugging Face directory that every executor can read.

The directory appears whole or not at all. Everything after this sees Hugging Face
directories only.
"""

import hashlib
import re
from pathlib import Path
from typing import Final

import structlog

from hybrid.backends.interface import ProgressCallback
from hybrid.scheduler.errors import CheckpointError, ConfigError

from .json_file import read_json_object
from .kept_directory import keep_directory
from .model_source import CheckpointFormat, ModelSource
from .safetensors_index import check_safetensors

log = structlog.get_logger()

CONVERTER_VERSION: Final = 1
"""Part of the directory's name; raised when the same file would convert otherwise."""
CONVERTED_DTYPES: Final = ("float32", "bfloat16", "float16")
_MAX_NAME_CHARACTERS: Final = 60
_ENDS: Final = ("eos_token_id", "bos_token_id")
_JSON_FILES: Final = {
    "config.json": "model_type",
    "tokenizer.json": "model",
    "tokenizer_config.json": "tokenizer_class",
    "generation_config.json": None,
}
"""What a conversion writes, and a key that each of them has."""


def convert_gguf(
    source: ModelSource,
    *,
    dtype: str,
    cache_dir: Path,
    progress: ProgressCallback | None = None,
) -> ModelSource:
    """Convert ``source`` into a directory under ``cache_dir``, or find it there.

    Args:
        source: a model in GGUF; one that is a Hugging Face directory is returned as is.
        dtype: what the weights are stored as; one of ``CONVERTED_DTYPES``.
        cache_dir: holds the converted models; made if missing.
        progress: called with stage ``convert`` and bytes of the GGUF.

    Raises:
        CheckpointError: the file is at fault; names the entry.
        ConfigError: ``dtype`` is none that can be stored.
    """
    if source.format is CheckpointFormat.HF_DIRECTORY:
        return source
    if dtype not in CONVERTED_DTYPES:
        raise ConfigError(
            f"dtype={dtype!r}: a GGUF converts to {', '.join(CONVERTED_DTYPES)}"
        )
    if not source.path.is_file():
        raise CheckpointError(f"{source.path} is no file")
    target = cache_dir / _directory_name(source, dtype)
    if not _is_whole(target):
        # Only here: what reads a GGUF is no part of a start from a converted one.
        from .gguf_directory import write_gguf_directory  # noqa: PLC0415

        try:
            keep_directory(
                target,
                lambda working: write_gguf_directory(
                    source.path, dtype, working, progress
                ),
                _is_whole,
            )
        except OSError as error:
            raise CheckpointError(
                f"{source.path} cannot be converted into {cache_dir}: {error}"
            ) from error
        log.info("gguf.converted", path=str(source.path), directory=str(target))
    return ModelSource(
        source.name, target, CheckpointFormat.HF_DIRECTORY, origin=source.path
    )


def _directory_name(source: ModelSource, dtype: str) -> str:
    key = repr((source.fingerprint, dtype, CONVERTER_VERSION))
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", source.path.stem).strip(".-")
    return f"{name[:_MAX_NAME_CHARACTERS]}-{dtype}-{digest}"


def _is_whole(directory: Path) -> bool:
    """Whether a conversion is there and complete.

    A machine that lost power may keep a file's name and lose its bytes.
    """
    if not directory.is_dir():
        return False
    try:
        check_safetensors(directory)
        _check_json_files(directory)
    except CheckpointError as error:
        log.warning("gguf.conversion_broken", directory=str(directory), why=str(error))
        return False
    return True


def _check_json_files(directory: Path) -> None:
    files: dict[str, dict[str, object]] = {}
    for name, key in _JSON_FILES.items():
        value = read_json_object(directory / name)
        if value is None:
            raise CheckpointError(f"{directory / name} is missing")
        if key is not None and key not in value:
            raise CheckpointError(f"{directory / name} lacks {key}")
        files[name] = value
    config, generation = files["config.json"], files["generation_config.json"]
    for key in _ENDS:  # the conversion takes them from there
        if config.get(key) != generation.get(key):
            raise CheckpointError(
                f"{directory}: {key} differs between generation_config.json and "
                "config.json"
            )
