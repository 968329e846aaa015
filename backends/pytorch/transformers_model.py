"""transformers' own model, checked, for executors that trace or convert it."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

from hybrid.backends.interface import ProgressCallback

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_transformers_model(
    directory: Path,
    *,
    dtype: str,
    attn_implementation: str,
    progress: ProgressCallback | None = None,
) -> "PreTrainedModel":
    """Load a Hugging Face directory into transformers' modelling code, on the CPU.

    No parameter is left at a random value, no weight is dropped in silence.

    Args:
        directory: config.json and safetensors.
        dtype: parameters are converted to it: ``float32``, ``bfloat16``, ``float16``.
        attn_implementation: transformers' name of the attention function.
        progress: called with stage ``load`` and bytes of the files.

    Raises:
        CheckpointError: the files are at fault; names the file or parameter.
        UnsupportedFeature: the weights are quantised, or the rotary embeddings depend
            on what else is in a batch, within the positions that it was made for.
    """
    # Imported here: plugins are imported where neither torch nor a model is needed.
    from .model_loader import load_model  # noqa: PLC0415
    from .rope_check import check_rope  # noqa: PLC0415

    loaded = load_model(
        directory,
        dtype=dtype,
        device="cpu",
        attn_implementation=attn_implementation,
        progress=progress,
    )
    model = cast("PreTrainedModel", loaded)
    config = model.config.get_text_config()
    check_rope(config, int(getattr(config, "max_position_embeddings", 0)))
    return model
