"""Brings a checkpoint into our Llama-shaped model, by way of transformers' own."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from hybrid.backends.interface import ExecutorConfig, ProgressCallback

from .llama import Llama
from .llama_check import check_llama, reference_logits
from .llama_shape import LlamaShape
from .model_loader import load_model
from .rope_check import check_rope

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class LoadedLlama:
    """A model that answers as transformers' does."""

    model: Llama
    shape: LlamaShape


@torch.inference_mode()
def load_llama(
    directory: Path,
    config: ExecutorConfig,
    executor: str,
    progress: ProgressCallback | None,
) -> LoadedLlama:
    """Load a Hugging Face directory.

    Args:
        directory: config.json and safetensors.
        config: dtype, device and context.
        executor: who asks, for messages.
        progress: see ``Executor``.

    Raises:
        CheckpointError: the files are at fault.
        UnsupportedFeature: the model is not Llama-shaped, or answers otherwise.
    """
    loaded = cast(
        "PreTrainedModel",
        load_model(
            directory,
            dtype=config.dtype,
            device=config.device,
            attn_implementation="eager",
            progress=progress,
        ),
    )
    most = config.max_model_len or loaded.config.max_position_embeddings
    check_rope(loaded.config, most)
    shape = LlamaShape.of(loaded, executor)
    reference = reference_logits(loaded)
    model = Llama(loaded, num_heads=shape.num_heads)
    check_llama(model, shape, reference, executor)
    return LoadedLlama(model, shape)
