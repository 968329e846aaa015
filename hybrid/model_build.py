"""``hybrid build``: finds a model and compiles it for the executor ``cpu``."""

import errno
import os
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from hybrid.backends.checkpoint.gguf_conversion import convert_gguf
from hybrid.backends.checkpoint.kept_directory import keep_directory
from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.cpu.build_check import check_built
from hybrid.backends.cpu.build_options import BuildOptions
from hybrid.backends.cpu.engine_build import build_engine_directory
from hybrid.backends.cpu.engine_directory import (
    MANIFEST_NAME,
    BuiltEngine,
    read_engine,
)
from hybrid.backends.cpu.native_library import NativeUnavailable, load_library
from hybrid.backends.interface import ProgressCallback
from hybrid.scheduler.errors import ConfigError

from .models.cache import converted_dir
from .models.resolve import resolve_model

log = structlog.get_logger()

_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


def build_model(
    model: str,
    target: Path,
    options: BuildOptions,
    *,
    revision: str | None = None,
    progress: ProgressCallback | None = None,
) -> BuiltEngine:
    """Build an engine directory; an engine that is there already is replaced.

    Args:
        model: a known name, a directory, a .gguf file or a Hugging Face id.
        target: the directory to write, or a symbolic link to it; it appears whole or
            not at all.
        options: what the engine is to be.
        revision: of a Hugging Face id.
        progress: told of what is fetched, converted and built.

    Raises:
        ConfigError: ``target`` holds something else or cannot be replaced, or ``model``
            is an engine.
        UnsupportedFeature: the kernels cannot run this model; says why.
        CheckpointError: the model's files are at fault (``ModelNotFound``: absent).
        OSError: ``target`` cannot be written.
    """
    target = Path(os.path.realpath(target))
    _check_target(target)
    source = _find(model, options, revision, progress)
    try:
        keep_directory(
            target,
            partial(_write, source, options, progress),
            # What is there was built otherwise, or is to be built again.
            is_whole=lambda _: False,
        )
    except OSError as error:
        if error.errno in _NO_SPACE:
            # The file that did not fit stood in a folder that is gone again.
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise
    return read_engine(target)


def _check_target(target: Path) -> None:
    """Refuse what could not be replaced, before a long build is for nothing."""
    if target.is_mount():
        raise ConfigError(
            f"output is {target}, a mount point, which cannot be replaced; name a "
            "directory in it"
        )
    if Path.cwd().is_relative_to(target):
        raise ConfigError(
            f"output is {target}, where this command runs, so that it cannot be "
            "replaced; name another directory"
        )
    if not target.exists() or (target / MANIFEST_NAME).is_file():
        return
    if not target.is_dir() or any(target.iterdir()):
        raise ConfigError(
            f"output is {target}, which holds something else than an engine; name a "
            "new directory"
        )


def _find(
    model: str,
    options: BuildOptions,
    revision: str | None,
    progress: ProgressCallback | None,
) -> ModelSource:
    source = resolve_model(
        model, revision=revision, progress=progress, compiled_files=(MANIFEST_NAME,)
    )
    if source.format is CheckpointFormat.COMPILED:
        raise ConfigError(
            f"model is {source.path}, an engine already; build from its checkpoint"
        )
    # The check of an exact engine compares it with the conversion.
    dtype = "float32" if options.asked_quantization == "fp32" else "bfloat16"
    return convert_gguf(
        source, dtype=dtype, cache_dir=converted_dir(), progress=progress
    )


def _write(
    source: ModelSource,
    options: BuildOptions,
    progress: ProgressCallback | None,
    working: Path,
) -> None:
    build_engine_directory(source, options, working, progress)
    try:
        library = load_library()
    except NativeUnavailable as error:
        # It may be meant for another machine.
        log.warning("cpu.engine_unchecked", model=source.name, why=str(error))
        return
    check_built(library, read_engine(working), source.path)
