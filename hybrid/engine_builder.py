"""Composes an engine from options: finds and loads the model, sizes the pool."""

from typing import Final

import structlog

from hybrid.backends.checkpoint.model_source import ModelSource
from hybrid.backends.interface import (
    Capabilities,
    Executor,
    ModelInfo,
    ProgressCallback,
)
from hybrid.scheduler import ConfigError, Scheduler, SchedulerConfig

from .engine import HybridEngine
from .engine_config import EngineConfig
from .events import configure_if_unset
from .executors import check_api_version, create_executor
from .kv_sizing import choose_num_blocks
from .model_resolution import ResolvedModel, resolve_options
from .nearest_name import nearest_hint
from .sampler.sampler import BadWordEncoder, Sampler
from .tokenizer.tokenizer import Tokenizer

log = structlog.get_logger()

DEFAULT_BATCHED_TOKENS: Final = 2048


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
        CheckpointError: the model's files are at fault (``ModelNotFound``: absent).
        UnsupportedFeature: the executor cannot run this model.
    """
    configure_if_unset()
    executor = create_executor(config.executor, has_model=config.model is not None)
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
    check_api_version(executor.capabilities())
    resolved = resolve_options(config, executor.capabilities(), progress)
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
    scheduler = _make_scheduler(config, scheduler_config)
    _log_started(executor.capabilities().name, resolved, info, scheduler_config)
    return HybridEngine(
        scheduler,
        executor,
        sampler=sampler,
        tokenizer=tokenizer,
        block_size=scheduler_config.block_size,
        max_logprobs=config.max_logprobs,
        max_model_len=scheduler_config.max_model_len,
        log_requests=log_requests,
    )


def _log_started(
    executor: str, resolved: ResolvedModel, info: ModelInfo, limits: SchedulerConfig
) -> None:
    source = resolved.source
    log.info(
        "engine.started",
        model=None if source is None else source.name,
        architecture=info.architecture,
        executor=executor,
        device=resolved.executor_config.device,
        dtype=resolved.executor_config.dtype,
        max_model_len=limits.max_model_len,
        block_size=limits.block_size,
        kv_blocks=limits.num_blocks,
        kv_tokens=limits.num_blocks * limits.block_size,
    )


def _load_tokenizer(
    config: EngineConfig, source: ModelSource | None
) -> Tokenizer | None:
    if config.skip_tokenizer_init or source is None:
        return None
    return Tokenizer.from_directory(source.path, chat_template=config.chat_template)


def _bad_word_encoder(tokenizer: Tokenizer) -> BadWordEncoder:
    def encode(word: str) -> list[tuple[int, ...]]:
        """Spell a word as at the start of a text, and as after a space."""
        texts = (word, " " + word.lstrip(" "))
        forms = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
        return list(dict.fromkeys(map(tuple, forms)))

    return encode


def _size(
    config: EngineConfig, executor: Executor, resolved: ResolvedModel, info: ModelInfo
) -> SchedulerConfig:
    """Settle the limits that depend on the loaded model."""
    capabilities, chosen = executor.capabilities(), resolved.executor_config
    max_model_len = config.max_model_len or info.max_model_len
    if max_model_len > info.max_model_len:
        raise ConfigError(
            f"max_model_len is {max_model_len}, {info.architecture} was made for "
            f"{info.max_model_len}"
        )
    is_chunked = _allowed(config, "enable_chunked_prefill", capabilities)
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
        enable_prefix_caching=_allowed(config, "enable_prefix_caching", capabilities),
        enable_chunked_prefill=is_chunked,
        supports_block_copy=capabilities.block_copy,
        policy=config.policy,
        cache_domain=(
            ("model", "" if source is None else source.fingerprint),
            ("dtype", chosen.dtype),
            ("executor", capabilities.name),
        ),
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


def _make_scheduler(config: EngineConfig, limits: SchedulerConfig) -> Scheduler:
    if callable(config.scheduler):
        scheduler = config.scheduler(limits)
        if not isinstance(scheduler, Scheduler):
            raise ConfigError(
                f"scheduler made a {type(scheduler).__name__}, must make a Scheduler"
            )
        return scheduler
    if config.scheduler != "paged":
        raise ConfigError(
            f"scheduler {config.scheduler!r} is unknown"
            f"{nearest_hint(config.scheduler, ['paged'])}; there is: paged"
        )
    from hybrid.scheduler import PagedScheduler  # noqa: PLC0415 - one of several to come

    return PagedScheduler(limits)
