"""Engines that were built on first use, kept under the executor's cache folder."""

import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from hybrid.backends.checkpoint.gguf_conversion import CONVERTER_VERSION
from hybrid.backends.checkpoint.json_file import read_json_object
from hybrid.backends.checkpoint.kept_directory import keep_directory
from hybrid.backends.checkpoint.model_source import (
    CheckpointFormat,
    ModelSource,
    original_source,
)
from hybrid.backends.interface import ExecutorConfig, ProgressCallback
from hybrid.scheduler.errors import CheckpointError, ConfigError

from .abi import ABI_VERSION
from .build_options import AUTO, QUANTIZATIONS, BuildOptions
from .engine_directory import (
    ENGINE_VERSION,
    MANIFEST_NAME,
    BuiltEngine,
    is_newer,
    read_engine,
)

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
        config: names the folder of kept engines; without one, or where it cannot be
            written, nothing is kept.
        options: what is wanted.
        progress: told of a build.
        check: asked of a new engine before it is kept.

    Raises:
        UnsupportedFeature: the kernels cannot run this model; says why.
        CheckpointError: the files are at fault; says what to rebuild.
        ConfigError: an engine directory was built with another quantization, or there
            is no place to build one.
    """
    if source.format is CheckpointFormat.COMPILED:
        engine = read_engine(source.path)
        _check_quantization(engine, options)
        return _with_cache_of(engine, options)

    def build(working: Path) -> None:
        _build(source, options, working, progress, check)

    if config.cache_dir is not None:
        try:
            kept = _find_kept(config.cache_dir, source, options)
            kept = kept or _keep(config.cache_dir, source, options, build)
            return _with_cache_of(kept, options)
        except OSError as error:
            log.warning(
                "cpu.engine_not_kept",
                model=source.name,
                cache_dir=str(config.cache_dir),
                why=str(error),
            )
    return _build_unkept(source, build)


def _find_kept(
    cache_dir: Path, source: ModelSource, options: BuildOptions
) -> BuiltEngine | None:
    """Find what was built before.

    What ``auto`` comes to the model's file says, and every engine built from it: so a
    start from a kept one opens no other file.
    """
    asked = options.asked_quantization
    for quantization in QUANTIZATIONS if asked == AUTO else (asked,):
        engine = _read_kept(cache_dir / _directory_name(source, quantization), source)
        if engine and quantization in (asked, engine.auto_quantization):
            return engine
    return None


def _keep(
    cache_dir: Path,
    source: ModelSource,
    options: BuildOptions,
    build: Callable[[Path], None],
) -> BuiltEngine:
    # Imported here, as below.
    from .engine_build import find_auto_quantization  # noqa: PLC0415

    quantization = options.asked_quantization
    if quantization == AUTO:
        quantization = find_auto_quantization(source)
    target = cache_dir / _directory_name(source, quantization)
    keep_directory(target, build, lambda path: _read_kept(path, source) is not None)
    log.info("cpu.engine_built", model=source.name, directory=str(target))
    _remove_outdated(cache_dir, source)
    return read_engine(target)


def _build_unkept(source: ModelSource, build: Callable[[Path], None]) -> BuiltEngine:
    # The mapped file stays for as long as it is mapped, its name goes at once.
    try:
        with tempfile.TemporaryDirectory(prefix="hybrid-cpu-") as folder:
            build(Path(folder))
            return read_engine(Path(folder))
    except OSError as error:
        raise ConfigError(
            f"the engine of {source.name} cannot be built in {tempfile.gettempdir()} "
            f"(TMPDIR): {error}"
        ) from error


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


def _directory_name(source: ModelSource, quantization: str) -> str:
    origin = original_source(source)
    versions = (ENGINE_VERSION, ABI_VERSION, CONVERTER_VERSION)
    key = repr((origin.fingerprint, quantization, versions))
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", origin.path.stem).strip(".-")
    return f"{name[:_MAX_NAME_CHARACTERS]}-{quantization}-{digest}"


def _read_kept(directory: Path, source: ModelSource) -> BuiltEngine | None:
    """Read a kept engine; ``None``: it is not there, or no longer whole."""
    if not directory.is_dir():
        return None
    try:
        engine = read_engine(directory)
    except CheckpointError as error:
        why = str(error)
    else:
        if engine.source_fingerprint == original_source(source).fingerprint:
            return engine
        why = "it was built from other files"
    log.warning("cpu.engine_broken", directory=str(directory), why=why)
    return None


def _remove_outdated(cache_dir: Path, source: ModelSource) -> None:
    """Remove what was built from this model's file before it or this package changed.

    Never what a newer package built, nor what another process is building: that is
    hidden. Who has a removed file mapped keeps it.
    """
    path = str(original_source(source).path.resolve())
    for directory in cache_dir.glob("[!.]*/"):
        with suppress(CheckpointError, OSError):  # another process may do the same
            manifest = read_json_object(directory / MANIFEST_NAME)
            if manifest is None or manifest.get("source") != path or is_newer(manifest):
                continue
            quantization = str(manifest.get("quantization"))
            if directory.name != _directory_name(source, quantization):
                shutil.rmtree(directory)
                log.info("cpu.engine_removed", directory=str(directory))
