"""Holds config.json's sizes against the weights' headers, before a model is built.

Building what no file can fill takes minutes or terabytes before anything else says that
the two do not fit.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from hybrid.scheduler.errors import CheckpointError
from hybrid.scheduler.shown_value import shown

from .safetensors_index import SafetensorsSummary

_LAYERS: Final = frozenset(
    {"num_hidden_layers", "num_layers", "n_layers", "n_layer", "encoder_layers"}
    | {"decoder_layers"}
)
_DIMENSIONS: Final = frozenset(
    {"hidden_size", "n_embd", "d_model", "vocab_size", "head_dim"}
    | {"intermediate_size", "moe_intermediate_size", "n_inner", "ffn_dim", "d_ff"}
    | {"num_attention_heads", "num_key_value_heads", "n_head", "num_heads"}
    | {"num_experts", "num_local_experts", "n_routed_experts"}
)


def check_config_sizes(
    path: Path, config: Mapping[str, object], summary: SafetensorsSummary
) -> None:
    """Check that no size in ``config`` is beyond what the files can hold.

    A layer has at least one tensor, and every other size is a dimension of some tensor
    or less.

    Args:
        path: of the config, for errors.
        config: what it holds.
        summary: the weights.

    Raises:
        CheckpointError: names the key, its value, and what the files hold.
    """
    num_tensors = len(summary.tensors)
    largest = max(
        (size for _, shape in summary.tensors.values() for size in shape), default=0
    )
    for key, value in _sizes(config):
        if key in _LAYERS and value > num_tensors:
            raise CheckpointError(
                f"{path}: {key} is {shown(value)}, the files hold {num_tensors} "
                "tensors in all"
            )
        if key in _DIMENSIONS and value > largest:
            raise CheckpointError(
                f"{path}: {key} is {shown(value)}, the largest dimension of any tensor "
                f"in the files is {largest}"
            )


def _sizes(config: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    # Models of text and images keep the language model's settings one level down.
    for level in (config, config.get("text_config")):
        if isinstance(level, Mapping):
            for key, value in level.items():
                if isinstance(value, int):
                    yield key, value
