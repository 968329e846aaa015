"""The tensorrt_llm executor over a directory, in float32 on one thread."""

from pathlib import Path
from typing import Any

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import ExecutorConfig
from hybrid.backends.trtllm.executor import TrtllmExecutor
from hybrid.testing import LoadedExecutor, load_executor


def load_trtllm(
    folder: Path, *, block_size: int = 16, **options: Any
) -> LoadedExecutor:
    """Load a Hugging Face directory."""
    config = ExecutorConfig(block_size=block_size, num_threads=1, options=options)
    source = ModelSource("tiny", folder, CheckpointFormat.HF_DIRECTORY)
    return load_executor(TrtllmExecutor(), source, config, num_blocks=99)
