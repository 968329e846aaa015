"""Loads a tokenizer with transformers, which knows every kind and takes seconds."""

from pathlib import Path

from hybrid.scheduler.errors import CheckpointError, ConfigError

from .loaded_tokenizer import LoadedTokenizer
from .missing_tokenizer import explain_missing


def load_auto_tokenizer(path: Path) -> LoadedTokenizer:
    """Load whatever ``AutoTokenizer`` can.

    Raises:
        CheckpointError: there is no tokenizer in ``path``, or it cannot be read.
        ConfigError: transformers is not installed.
    """
    try:
        from transformers import AutoTokenizer  # noqa: PLC0415  (seconds)
    except ImportError as error:
        raise ConfigError(
            f"the tokenizer in {path} needs transformers: pip install "
            "'hybrid-llm-engine[torch]', or skip_tokenizer_init=True for token ids"
        ) from error
    try:
        # A directory without tokenizer.json (tokenizer.model alone) is converted here:
        # transformers reads that file through sentencepiece and protobuf, which it
        # does not require itself.
        loaded = AutoTokenizer.from_pretrained(
            str(path), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers raises whatever broke
        raise CheckpointError(
            f"{path} has no tokenizer that can be loaded: "
            f"{explain_missing(path, error)}"
        ) from error
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise CheckpointError(
            f"{path} has a tokenizer of class {type(loaded).__name__}, which runs in "
            "Python only; convert it to a tokenizer.json"
        )
    return LoadedTokenizer(backend, loaded.special_tokens_map, loaded.chat_template)
