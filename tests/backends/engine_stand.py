"""The torch executor over a directory, and transformers' own answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import ExecutorConfig
from hybrid.backends.pytorch.executor import TorchExecutor
from hybrid.testing import LoadedExecutor, load_executor, transformers_answers

POOL_BLOCKS = 199


def load_torch(
    folder: Path,
    block_size: int,
    *,
    num_threads: int = 1,
    max_model_len: int | None = None,
    device: str = "cpu",
    **options: Any,
) -> LoadedExecutor:
    """Load a directory into the torch executor in float32, on a fixed thread count."""
    config = ExecutorConfig(
        dtype="float32",
        block_size=block_size,
        num_threads=num_threads,
        max_model_len=max_model_len,
        device=device,
        options=options,
    )
    source = ModelSource("tiny", folder, CheckpointFormat.HF_DIRECTORY)
    return load_executor(TorchExecutor(), source, config, num_blocks=POOL_BLOCKS)


def reference(
    folder: Path, prompts: Sequence[Sequence[int]], num_tokens: int
) -> list[list[int]]:
    """Greedy continuations by transformers' ``generate``, each prompt alone."""
    answers = transformers_answers(folder, prompts, num_tokens)
    return [list(answer.token_ids) for answer in answers]
