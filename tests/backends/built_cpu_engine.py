"""Builds engines of tiny models into new folders."""

from pathlib import Path

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.cpu.build_options import BuildOptions
from hybrid.backends.cpu.engine_build import build_engine_directory
from hybrid.backends.cpu.engine_directory import BuiltEngine, read_engine


def hf_source(folder: Path) -> ModelSource:
    """Name a Hugging Face directory."""
    return ModelSource("tiny", folder, CheckpointFormat.HF_DIRECTORY)


def build(source: ModelSource, target: Path, **options: str) -> BuiltEngine:
    """Build into a new folder and read it."""
    target.mkdir()
    build_engine_directory(source, BuildOptions(**options), target)
    return read_engine(target)
