"""Settles, before loading, what depends on the executor and on the model's files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import Capabilities, ExecutorConfig, ProgressCallback
from hybrid.scheduler import ConfigError

from .engine_config import EngineConfig
from .models.cache import converted_dir, executor_cache_dir
from .models.resolve import resolve_model
from .nearest_name import nearest_hint


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """Options after the executor and the model's files had their say."""

    source: ModelSource | None
    executor_config: ExecutorConfig


def resolve_options(
    config: EngineConfig,
    capabilities: Capabilities,
    progress: ProgressCallback | None,
) -> ResolvedModel:
    """Check options against the executor before anything heavy, then find the model."""
    device = _choose("device", config.device, capabilities.devices, capabilities)
    block_size = config.block_size or capabilities.block_sizes[0]
    if block_size not in capabilities.block_sizes:
        known = ", ".join(map(str, sorted(capabilities.block_sizes)))
        raise ConfigError(
            f"block_size is {block_size}, executor {capabilities.name} takes {known}"
        )
    source = None
    if config.model is not None:
        source = resolve_model(
            config.model,
            progress=progress,
            revision=config.revision,
            compiled_files=capabilities.model_files,
        )
    dtype = _resolve_dtype(config.dtype, source, capabilities, device)
    if source is not None and source.format is CheckpointFormat.GGUF:
        from hybrid.backends.checkpoint.gguf_conversion import convert_gguf  # noqa: PLC0415 - heavy

        source = convert_gguf(
            source, dtype=dtype, cache_dir=converted_dir(), progress=progress
        )
    return ResolvedModel(
        source,
        ExecutorConfig(
            dtype=dtype,
            device=device,
            block_size=block_size,
            max_model_len=config.max_model_len,
            max_num_seqs=config.max_num_seqs,
            num_threads=config.num_threads,
            options=config.executor_options,
            cache_dir=_cache_dir(capabilities.name),
        ),
    )


def _cache_dir(executor: str) -> Path | None:
    """Name the executor's folder, or nothing where there is no place for a cache."""
    try:
        return executor_cache_dir(executor)
    except ConfigError:
        return None


def _resolve_dtype(
    requested: str,
    source: ModelSource | None,
    capabilities: Capabilities,
    device: str,
) -> str:
    if source is None:
        choices = (*capabilities.fast_dtypes[device], *capabilities.dtypes)
        unique = tuple(dict.fromkeys(choices))
        return _choose("dtype", requested, unique, capabilities)
    from hybrid.backends.checkpoint.dtype import resolve_dtype  # noqa: PLC0415 - heavy

    return resolve_dtype(requested, source, capabilities, device)


def _choose(
    option: str, value: str, choices: Sequence[str], capabilities: Capabilities
) -> str:
    """Take the first choice for ``auto``, else insist on one of them."""
    if value == "auto":
        return choices[0]
    if value not in choices:
        raise ConfigError(
            f"{option} is {value!r}, executor {capabilities.name} has "
            f"{', '.join(choices)} here{nearest_hint(value, choices)}"
        )
    return value
