"""Engines that were built on first use, kept under the executor's cache folder."""

import hashlib
import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from hybrid.backends.checkpoint.gguf_conversion import CONVERTER_VERSION
from hybrid.backends.checkpoint.kept_directory import keep_directory
from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import ExecutorConfig, ProgressCallback
from hybrid.scheduler.errors import CheckpointError, ConfigError

from .abi import ABI_VERSION
from .build_options import AUTO, BuildOptions
from .engine_directory import ENGINE_VERSION, BuiltEngine, read_engine

log = structlog.get_logger()

EngineCheck = Callable[[BuiltEngine], None]
"""Accepts a fresh engine, or raises."""
_MAX_NAME_CHARACTERS: Final = 60


def find_or_build(
    source: ModelSource,
    config: ExecutorConfig,
    options: BuildOptions,
    progress: ProgressCallback | None = None,
    check: EngineCheck | None = None,
) -> BuiltEngine:
    """Give the engine of a model: a built one as it is, a kept one, or a new one.

    Args:
        source: an engine directory, or a Hugging Face directory.
        config: names the folder of kept engines; without one nothing is kept.
        options: what is wanted.
        progress: told of a build.
        check: asked of a new engine before it is kept.

    Raises:
        UnsupportedFeature: the kernels cannot run this model; says why.
        CheckpointError: the files are at fault; says what to rebuild.
        ConfigError: an engine directory was built with another quantization, or the
            cache cannot be written.
    """
    if source.format is CheckpointFormat.COMPILED:
        engine = read_engine(source.path)
        _check_quantization(engine, options)
        return _with_cache_of(engine, options)
    if config.cache_dir is None:
        # The mapped file stays for as long as it is mapped, its name goes at once.
        with tempfile.TemporaryDirectory(prefix="hybrid-cpu-") as folder:
            _build(source, options, Path(folder), progress, check)
            return read_engine(Path(folder))
    target = config.cache_dir / _directory_name(source, options)
    if not _is_whole(target):
        try:
            keep_directory(
                target,
                lambda working: _build(source, options, working, progress, check),
                _is_whole,
            )
        except OSError as error:
            raise ConfigError(
                f"the engine of {source.name} cannot be kept in {config.cache_dir} "
                f"(HYBRID_CACHE): {error}"
            ) from error
        log.info("cpu.engine_built", model=source.name, directory=str(target))
    return _with_cache_of(read_engine(target), options)


def _build(
    source: ModelSource,
    options: BuildOptions,
    target: Path,
    progress: ProgressCallback | None,
    check: EngineCheck | None,
) -> None:
    # Imported here: what builds brings torch and transformers along.
    from .engine_build import build_engine_directory  # noqa: PLC0415

    build_engine_directory(source, options, target, progress)
    if check is not None:
        check(read_engine(target))


def _check_quantization(engine: BuiltEngine, options: BuildOptions) -> None:
    asked = options.asked_quantization
    if asked not in (AUTO, engine.quantization):
        raise ConfigError(
            f"{engine.directory} was built with quantization={engine.quantization}, "
            f"asked for is {asked}; leave it out, or build it again with `hybrid build "
            f"MODEL --quantization {asked} -o DIR`"
        )


def _with_cache_of(engine: BuiltEngine, options: BuildOptions) -> BuiltEngine:
    """Take the cache's dtype as asked for; no weight depends on it."""
    if options.kv_cache_dtype == AUTO:
        return engine
    return replace(engine, kv_cache_dtype=options.kv_cache_dtype)


def _directory_name(source: ModelSource, options: BuildOptions) -> str:
    quantization = options.asked_quantization
    origin = source
    if source.origin is not None:
        origin = ModelSource(source.name, source.origin, CheckpointFormat.GGUF)
    versions = (ENGINE_VERSION, ABI_VERSION, CONVERTER_VERSION)
    key = repr((origin.fingerprint, quantization, versions))
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", origin.path.stem).strip(".-")
    return f"{name[:_MAX_NAME_CHARACTERS]}-{quantization}-{digest}"


def _is_whole(directory: Path) -> bool:
    """Whether a kept engine is there and complete."""
    if not directory.is_dir():
        return False
    try:
        read_engine(directory)
    except CheckpointError as error:
        log.warning("cpu.engine_broken", directory=str(directory), why=str(error))
        return False
    return True
