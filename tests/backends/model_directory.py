"""Writes, damages and loads directories of tiny models."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from hybrid.backends.pytorch.model_loader import load_model


def save(directory: Path, model: transformers.PreTrainedModel, **options: Any) -> Path:
    """Write a model as Hugging Face does."""
    model.save_pretrained(directory, **options)
    return directory


def load(directory: Path, dtype: str = "float32") -> Any:
    """Load with a plain attention function."""
    return load_model(directory, dtype=dtype, device="cpu", attn_implementation="sdpa")


def change_weights(
    directory: Path, **changes: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Add, replace or (None) remove tensors; ``__`` stands for a dot."""
    path = directory / "model.safetensors"
    weights = load_file(path)
    for name, value in changes.items():
        if value is None:
            del weights[name.replace("__", ".")]
        else:
            weights[name.replace("__", ".")] = value
    save_file(weights, path, metadata={"format": "pt"})
    return weights


def change_config(directory: Path, **changes: object) -> None:
    """Set keys of config.json."""
    path = directory / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(config))
