"""Converts and loads the way the torch executor does."""

from pathlib import Path

import torch

from hybrid.backends.checkpoint.gguf_conversion import convert_gguf
from hybrid.backends.checkpoint.model_source import ModelSource
from hybrid.backends.pytorch.model_loader import load_model


def convert(source: ModelSource, tmp_path: Path, dtype: str = "float32") -> Path:
    """Convert into a cache of the test's own."""
    return convert_gguf(source, dtype=dtype, cache_dir=tmp_path / "converted").path


def load(directory: Path) -> torch.nn.Module:
    """Load the way the torch executor does."""
    return load_model(
        directory, dtype="float32", device="cpu", attn_implementation="eager"
    )
