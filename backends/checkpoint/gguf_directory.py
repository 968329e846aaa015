"""Writes one GGUF as a Hugging Face directory: configuration, tokenizer, weights."""

import json
from pathlib import Path
from typing import cast

from hybrid.backends.interface import ProgressCallback
from hybrid.scheduler.errors import CheckpointError

from .gguf_config import gguf_config
from .gguf_header import read_gguf_header
from .gguf_tokenizer_files import write_gguf_tokenizer
from .gguf_weights import write_gguf_weights


def write_gguf_directory(
    path: Path, dtype: str, directory: Path, progress: ProgressCallback | None
) -> None:
    """Convert ``path`` into the existing, empty ``directory``.

    Args:
        path: the GGUF.
        dtype: what the weights are stored as.
        directory: gets everything that transformers reads.
        progress: called with stage ``convert`` and bytes of the GGUF.

    Raises:
        CheckpointError: the file is at fault; names the entry.
    """
    header = read_gguf_header(path)
    config = gguf_config(header, dtype)
    # The cheap parts first: most faulty files fail here.
    num_tokens = write_gguf_tokenizer(header, directory)
    if num_tokens > cast("int", config["vocab_size"]):
        raise CheckpointError(
            f"{header.path}: the tokenizer has {num_tokens} tokens, token_embd.weight "
            f"has {config['vocab_size']} rows"
        )
    generation = json.loads((directory / "generation_config.json").read_text())
    config |= {key: generation.get(key) for key in ("eos_token_id", "bos_token_id")}
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_gguf_weights(header, config, directory / "model.safetensors", progress)
