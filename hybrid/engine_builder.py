"""Composes an engine from options: finds and loads the model, sizes the pool."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import (
    Capabilities,
    Executor,
    ExecutorConfig,
    ModelInfo,
    ProgressCallback,
)
from hybrid.scheduler import ConfigError, Scheduler, SchedulerConfig

from .engine import HybridEngine
from .engine_config import EngineConfig
from .executors import create_executor
from .kv_sizing import choose_num_blocks
from .models.cache import converted_dir
from .models.resolve import resolve_model
from .nearest_name import nearest_hint
from .sampler.sampler import BadWordEncoder, Sampler
from .tokenizer.tokenizer import Tokenizer

log = structlog.get_logger()

DEFAULT_BATCHED_TOKENS: Final = 2048


@dataclass(frozen=True, slots=True)
class _Resolved:
    """Options after the executor and the model's files had their say."""

    source: ModelSource | None
    executor_config: ExecutorConfig


def build_engine(
    config: EngineConfig,
    *,
    progress: ProgressCallback | None = None,
    log_requests: bool = True,
) -> HybridEngine:
    """Find the model, load it, size the KV pool, put the parts together.

    Args:
        config: checked options.
        progress: told how far fetching, converting and loading are.
        log_requests: whether a request's end is logged at INFO.

    Raises:
        ConfigError: options contradict each other, the executor or the model.
        CheckpointError: the model's files are at fault (``ModelNotFound``: absent).
        UnsupportedFeature: the executor cannot run this model.
    """
    executor = create_executor(config.executor)
    try:
        return _build(config, executor, progress, log_requests=log_requests)
    except BaseException:
        executor.close()
        raise


def _build(
    config: EngineConfig,
    executor: Executor,
    progress: ProgressCallback | None,
    *,
    log_requests: bool,
) -> HybridEngine:
    resolved = _resolve(config, executor.capabilities(), progress)
    source, executor_config = resolved.source, resolved.executor_config
    # One after the other: transformers cannot be imported by two threads at once.
    info = executor.load(source, executor_config, progress)
    tokenizer = _load_tokenizer(config, source)
    scheduler_config = _size(config, executor, resolved, info)
    executor.allocate_kv(scheduler_config.num_blocks + 1)
    sampler = Sampler(
        info.vocab_size,
        num_valid_ids=None if tokenizer is None else tokenizer.vocab_size,
        seed=config.seed,
        encode_bad_word=None if tokenizer is None else _bad_word_encoder(tokenizer),
        logits_processors=config.logits_processors,
    )
    log.info(
        "engine.started",
        model=None if source is None else source.name,
        architecture=info.architecture,
        executor=executor.capabilities().name,
        device=executor_config.device,
        dtype=executor_config.dtype,
        max_model_len=scheduler_config.max_model_len,
        block_size=scheduler_config.block_size,
        kv_blocks=scheduler_config.num_blocks,
        kv_tokens=scheduler_config.num_blocks * scheduler_config.block_size,
    )
    return HybridEngine(
        _make_scheduler(config, scheduler_config),
        executor,
        sampler=sampler,
        tokenizer=tokenizer,
        vocab_size=info.vocab_size,
        block_size=scheduler_config.block_size,
        max_logprobs=config.max_logprobs,
        log_requests=log_requests,
    )


def _resolve(
    config: EngineConfig,
    capabilities: Capabilities,
    progress: ProgressCallback | None,
) -> _Resolved:
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
            config.model, progress=progress, revision=config.revision
        )
    elif capabilities.needs_checkpoint:
        raise ConfigError(f"executor {capabilities.name} needs a model")
    dtype = _resolve_dtype(config.dtype, source, capabilities)
    if source is not None and source.format is CheckpointFormat.GGUF:
        from hybrid.backends.checkpoint.gguf_conversion import convert_gguf  # noqa: PLC0415 - heavy

        source = convert_gguf(
            source, dtype=dtype, cache_dir=converted_dir(), progress=progress
        )
    return _Resolved(
        source,
        ExecutorConfig(
            dtype=dtype,
            device=device,
            block_size=block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens
            or DEFAULT_BATCHED_TOKENS,
            max_model_len=config.max_model_len,
            num_threads=config.num_threads,
            options=config.executor_options,
        ),
    )


def _resolve_dtype(
    requested: str, source: ModelSource | None, capabilities: Capabilities
) -> str:
    if source is None:
        fast = capabilities.fast_dtypes[0]
        return _choose("dtype", requested, (fast, *capabilities.dtypes), capabilities)
    from hybrid.backends.checkpoint.dtype import resolve_dtype  # noqa: PLC0415 - heavy

    return resolve_dtype(requested, source, capabilities)


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


def _load_tokenizer(
    config: EngineConfig, source: ModelSource | None
) -> Tokenizer | None:
    if config.skip_tokenizer_init or source is None:
        return None
    return Tokenizer.from_directory(source.path)


def _bad_word_encoder(tokenizer: Tokenizer) -> BadWordEncoder:
    def encode(word: str) -> list[tuple[int, ...]]:
        """Spell a word as at the start of a text, and as after a space."""
        texts = (word, " " + word.lstrip(" "))
        forms = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
        return list(dict.fromkeys(map(tuple, forms)))

    return encode


def _size(
    config: EngineConfig, executor: Executor, resolved: _Resolved, info: ModelInfo
) -> SchedulerConfig:
    """Settle the limits that depend on the loaded model."""
    capabilities, chosen = executor.capabilities(), resolved.executor_config
    max_model_len = config.max_model_len or info.max_model_len
    if max_model_len > info.max_model_len:
        raise ConfigError(
            f"max_model_len is {max_model_len}, {info.architecture} was made for "
            f"{info.max_model_len}"
        )
    is_chunked = config.enable_chunked_prefill and capabilities.chunked_prefill
    budget = config.max_num_batched_tokens
    if budget is None:
        at_least = 1 if is_chunked else max_model_len
        budget = max(DEFAULT_BATCHED_TOKENS, at_least)
    source = resolved.source
    return SchedulerConfig(
        block_size=chosen.block_size,
        num_blocks=choose_num_blocks(
            config,
            executor.kv_spec(),
            block_size=chosen.block_size,
            max_model_len=max_model_len,
            device=chosen.device,
        ),
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=budget,
        max_prefill_chunk_tokens=config.max_prefill_chunk_tokens,
        enable_prefix_caching=config.enable_prefix_caching
        and capabilities.prefix_reuse,
        enable_chunked_prefill=is_chunked,
        supports_block_copy=capabilities.block_copy,
        policy=config.policy,
        cache_domain=(
            ("model", "" if source is None else source.fingerprint),
            ("dtype", chosen.dtype),
            ("executor", capabilities.name),
        ),
    )


def _make_scheduler(config: EngineConfig, limits: SchedulerConfig) -> Scheduler:
    if callable(config.scheduler):
        return config.scheduler(limits)
    if config.scheduler != "paged":
        raise ConfigError(
            f"scheduler {config.scheduler!r} is unknown"
            f"{nearest_hint(config.scheduler, ['paged'])}; there is: paged"
        )
    from hybrid.scheduler import PagedScheduler  # noqa: PLC0415 - one of several to come

    return PagedScheduler(limits)
