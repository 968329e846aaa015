"""Makes an engine's text parts: the tokenizer, and a sampler that can spell words."""

from pathlib import Path
from typing import TYPE_CHECKING

from hybrid.backends.checkpoint.model_source import ModelSource
from hybrid.scheduler import ConfigError

from .engine_config import EngineConfig
from .logits_processors import make_logits_processors
from .models.cache import tokenizers_dir
from .plugins.manager import PluginManager
from .sampler.sampler import BadWordEncoder, Sampler

if TYPE_CHECKING:
    # Text is an extra: without it the engine takes and gives token ids.
    from .tokenizer.tokenizer import Tokenizer


def load_tokenizer(
    config: EngineConfig, source: ModelSource | None
) -> "Tokenizer | None":
    """Load the model's tokenizer; ``None`` where token ids are all there is.

    Raises:
        ConfigError: a library that text needs is not installed.
        CheckpointError: the model's files have no usable tokenizer.
    """
    if config.skip_tokenizer_init or source is None:
        return None
    try:
        from .tokenizer.tokenizer import Tokenizer  # noqa: PLC0415 - see above
    except ImportError as error:
        raise ConfigError(
            f"a model's text needs {error.name}: pip install "
            "'hybrid-llm-engine[torch]', or skip_tokenizer_init=True for token ids"
        ) from error
    return Tokenizer.from_directory(
        source.path, chat_template=config.chat_template, cache_dir=_cache_dir()
    )


def _cache_dir() -> Path | None:
    """Name the tokenizers' folder, or nothing where there is no place for a cache."""
    try:
        return tokenizers_dir()
    except ConfigError:
        return None


def make_sampler(
    config: EngineConfig,
    plugins: PluginManager,
    vocab_size: int,
    tokenizer: "Tokenizer | None",
) -> Sampler:
    """Make a sampler of the configured seed and logits processors.

    Args:
        config: checked options.
        plugins: offer the processors that are named.
        vocab_size: columns of the logits.
        tokenizer: knows which ids exist, spells bad words.
    """
    choices = config.logits_processors
    return Sampler(
        vocab_size,
        num_valid_ids=None if tokenizer is None else tokenizer.vocab_size,
        seed=config.seed,
        encode_bad_word=None if tokenizer is None else _bad_word_encoder(tokenizer),
        logits_processors=make_logits_processors(plugins, choices),
    )


def _bad_word_encoder(tokenizer: "Tokenizer") -> BadWordEncoder:
    def encode(word: str) -> list[tuple[int, ...]]:
        """Spell a word as at the start of a text, and as after a space."""
        texts = (word, " " + word.lstrip(" "))
        forms = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
        return list(dict.fromkeys(map(tuple, forms)))

    return encode
