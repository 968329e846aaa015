"""Composes an engine from options: finds and loads the model, sizes the pool."""

from dataclasses import dataclass
from types import NoneType
from typing import Final

import structlog

from hybrid.backends.checkpoint.model_source import ModelSource
from hybrid.backends.interface import (
    Capabilities,
    Executor,
    KVSpec,
    ModelInfo,
    ProgressCallback,
)
from hybrid.bridge import KVLayout
from hybrid.scheduler import (
    CheckpointError,
    ConfigError,
    ExecutorFailed,
    SchedulerConfig,
)

from .engine import HybridEngine
from .engine_config import EngineConfig
from .events import configure_if_unset
from .executor_calls import call_executor, capabilities_of, close_executor
from .executors import create_executor
from .kv_sizing import choose_num_blocks
from .model_readers import with_readers
from .model_resolution import ResolvedModel, resolve_options
from .plugins.engine_events import EngineStarted
from .plugins.loader import load_plugins
from .plugins.manager import PluginManager
from .schedulers import make_scheduler
from .text_parts import load_tokenizer, make_sampler

log = structlog.get_logger()

DEFAULT_BATCHED_TOKENS: Final = 2048


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine, and what it was built from."""

    engine: HybridEngine
    started: EngineStarted
    source: ModelSource | None
    """``None``: the executor runs without a model."""
    limits: SchedulerConfig


def build_engine(
    config: EngineConfig,
    *,
    progress: ProgressCallback | None = None,
    log_requests: bool = True,
) -> HybridEngine:
    """Find the model, load it, size the KV pool, put the parts together.

    Unless the program has configured structlog, events from INFO up go to stderr.

    Args:
        config: checked options.
        progress: told how far fetching, converting and loading are.
        log_requests: whether a request's end is logged at INFO.

    Raises:
        ConfigError: options contradict each other, the executor or the model.
        PluginError: a plugin that was asked for by name cannot be had.
        ExecutorFailed: the executor raised.
        CheckpointError: the model's files are at fault (``ModelNotFound``: absent).
        UnsupportedFeature: the executor cannot run this model.
    """
    return load_engine(config, progress=progress, log_requests=log_requests).engine


def load_engine(
    config: EngineConfig,
    *,
    progress: ProgressCallback | None = None,
    log_requests: bool = True,
) -> LoadedEngine:
    """As ``build_engine``, for those who tell others what runs."""
    configure_if_unset()
    plugins = _load_plugins(config)
    executor = create_executor(
        plugins, config.executor, has_model=config.model is not None
    )
    try:
        parts = _Parts(config, plugins, executor, capabilities_of(executor))
        return _build(parts, progress, log_requests=log_requests)
    except BaseException:
        close_executor(executor)
        raise


def _load_plugins(config: EngineConfig) -> PluginManager:
    selection = config.plugin_selection
    plugins = load_plugins(selection)
    plugins.require(selection.allowed or ())
    plugins.warn_of_failures()
    return plugins


@dataclass(frozen=True, slots=True)
class _Parts:
    """What an engine is built from."""

    config: EngineConfig
    plugins: PluginManager
    executor: Executor
    capabilities: Capabilities


def _build(
    parts: _Parts, progress: ProgressCallback | None, *, log_requests: bool
) -> LoadedEngine:
    config, executor, name = parts.config, parts.executor, parts.capabilities.name
    resolved, info = _load_model(parts, progress)
    # One after the other: transformers cannot be imported by two threads at once.
    tokenizer = load_tokenizer(config, resolved.source)
    spec = call_executor(name, executor.kv_spec, KVSpec)
    limits = _size(parts, resolved, info, spec)
    _allocate(parts, spec, limits.num_blocks + 1)
    hooks = parts.plugins.lifecycle_hooks()
    engine = HybridEngine(
        make_scheduler(parts.plugins, config.scheduler, limits),
        executor,
        sampler=make_sampler(config, parts.plugins, info.vocab_size, tokenizer),
        tokenizer=tokenizer,
        block_size=limits.block_size,
        max_logprobs=config.max_logprobs,
        max_model_len=limits.max_model_len,
        log_requests=log_requests,
        hooks=hooks,
    )
    started = _started(name, resolved, info, limits)
    _log_started(started)
    if hooks.engine_started:
        hooks.engine_started(started)
    return LoadedEngine(engine, started, resolved.source, limits)


def _load_model(
    parts: _Parts, progress: ProgressCallback | None
) -> tuple[ResolvedModel, ModelInfo]:
    config, name = parts.config, parts.capabilities.name
    try:
        resolved = resolve_options(config, parts.capabilities, progress)
        load, chosen = parts.executor.load, resolved.executor_config
        info = call_executor(name, load, ModelInfo, resolved.source, chosen, progress)
    except CheckpointError as error:
        told = with_readers(error, parts.plugins, config.model, name)
        if told is error:
            raise
        raise told from error
    return resolved, info


def _started(
    executor: str, resolved: ResolvedModel, info: ModelInfo, limits: SchedulerConfig
) -> EngineStarted:
    source = resolved.source
    return EngineStarted(
        model=None if source is None else source.name,
        architecture=info.architecture,
        executor=executor,
        device=resolved.executor_config.device,
        dtype=resolved.executor_config.dtype,
        max_model_len=limits.max_model_len,
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
    )


def _log_started(started: EngineStarted) -> None:
    log.info(
        "engine.started",
        model=started.model,
        architecture=started.architecture,
        executor=started.executor,
        device=started.device,
        dtype=started.dtype,
        max_model_len=started.max_model_len,
        block_size=started.block_size,
        kv_blocks=started.num_blocks,
        kv_tokens=started.num_blocks * started.block_size,
    )


def _allocate(parts: _Parts, spec: KVSpec, num_blocks: int) -> None:
    """Have the pool allocated, null block included."""
    name = parts.capabilities.name
    layout = call_executor(
        name, parts.executor.allocate_kv, (KVLayout, NoneType), num_blocks
    )
    # Cells in a format of the executor's own fit no layout, all others have one.
    if spec.cell_bytes is None and layout is None:
        raise ExecutorFailed(
            f"executor {name} gave None from allocate_kv, must give a KVLayout: its "
            "kv_spec has no cell_bytes"
        )
    if spec.cell_bytes is not None and layout is not None:
        raise ExecutorFailed(
            f"executor {name} gave a KVLayout from allocate_kv, must give None: its "
            f"kv_spec has cell_bytes={spec.cell_bytes}"
        )


def _size(
    parts: _Parts, resolved: ResolvedModel, info: ModelInfo, spec: KVSpec
) -> SchedulerConfig:
    """Settle the limits that depend on the loaded model."""
    config, capabilities = parts.config, parts.capabilities
    chosen, source = resolved.executor_config, resolved.source
    max_model_len = config.max_model_len or info.max_model_len
    if max_model_len > info.max_model_len:
        raise ConfigError(
            f"max_model_len is {max_model_len}, {info.architecture} was made for "
            f"{info.max_model_len}"
        )
    is_chunked = _allowed(config, "enable_chunked_prefill", capabilities)
    return SchedulerConfig(
        block_size=chosen.block_size,
        num_blocks=choose_num_blocks(
            config,
            spec,
            block_size=chosen.block_size,
            max_model_len=max_model_len,
            device=chosen.device,
        ),
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=_token_budget(
            config, info, at_least=1 if is_chunked else max_model_len
        ),
        max_prefill_chunk_tokens=config.max_prefill_chunk_tokens,
        enable_prefix_caching=_allowed(config, "enable_prefix_caching", capabilities),
        enable_chunked_prefill=is_chunked,
        align_chunks=capabilities.aligned_chunks,
        supports_block_copy=capabilities.block_copy,
        policy=config.policy,
        cache_domain=(
            ("model", "" if source is None else source.fingerprint),
            ("dtype", chosen.dtype),
            ("executor", capabilities.name),
        ),
    )


def _token_budget(config: EngineConfig, info: ModelInfo, *, at_least: int) -> int:
    """Tokens of one step, as asked for or as the model allows."""
    asked, limit = config.max_num_batched_tokens, info.max_num_batched_tokens
    budget = asked or max(DEFAULT_BATCHED_TOKENS, at_least)
    if limit is None or budget <= limit:
        return budget
    if asked is None:
        return limit
    raise ConfigError(
        f"max_num_batched_tokens is {asked}, {info.architecture} was made for {limit}"
    )


def _allowed(config: EngineConfig, option: str, capabilities: Capabilities) -> bool:
    """Whether a feature is on; asked for of an executor without it, it is refused."""
    is_able = {
        "enable_chunked_prefill": capabilities.chunked_prefill,
        "enable_prefix_caching": capabilities.prefix_reuse,
    }[option]
    is_wanted: bool = getattr(config, option)
    if is_wanted and not is_able and config.is_asked_for(option):
        raise ConfigError(
            f"{option} is True, which executor {capabilities.name} cannot do"
        )
    return is_wanted and is_able
