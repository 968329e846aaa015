"""Where a model's files are: found once by the package above, passed to executors."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class CheckpointFormat(StrEnum):
    """How a model lies on disk."""

    HF_DIRECTORY = "hf_directory"
    """A directory with config.json and safetensors (sharded or not)."""
    GGUF = "gguf"
    """One .gguf file: config, weights, tokenizer and chat template."""
    COMPILED = "compiled"
    """A directory in the form of one executor (``Capabilities.model_files``), with
    config.json and the tokenizer's files beside it."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model on disk."""

    name: str
    """As the user named it; for messages and the service's model id."""
    path: Path
    """The directory, or the .gguf file."""
    format: CheckpointFormat
    origin: Path | None = None
    """The .gguf that a Hugging Face directory was converted from; ``None``: none."""

    @property
    def fingerprint(self) -> str:
        """Changes when the files do: resolved path, sizes and modification times."""
        files = [self.path]
        if self.format is CheckpointFormat.HF_DIRECTORY:
            files = sorted(
                file
                for file in self.path.iterdir()
                if file.suffix in {".json", ".safetensors"}
            )
        elif self.format is CheckpointFormat.COMPILED:
            files = sorted(file for file in self.path.iterdir() if file.is_file())
        stamps = [
            (file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files
        ]
        return repr((str(self.path.resolve()), stamps))


def original_source(source: ModelSource) -> ModelSource:
    """Give the .gguf that a model was converted from, or the model itself."""
    if source.origin is None:
        return source
    return ModelSource(source.name, source.origin, CheckpointFormat.GGUF)
