"""What the plan of a Llama-shaped model is made from. Knows no library of models."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuModelShape:
    """Sizes of a decoder, its positions, and what each of its layers sees."""

    architecture: str
    """transformers' name of its class."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_model_len: int
    """Most positions it was made for."""
    norm_epsilon: float
    attention_scale: float
    """Factor of the scores before the softmax."""
    rope_scale: float
    """Factor of cosines and sines."""
    inverse_frequencies: tuple[float, ...]
    """float32 values, ``[head_dim / 2]``."""
    windows: tuple[int | None, ...]
    """For each layer, tokens that a query sees, itself included; ``None``: all."""
    has_qkv_bias: bool
    has_output_bias: bool
    """Of the projection behind attention."""
    has_mlp_bias: bool
    has_head_norms: bool
    """Queries and keys are normalised head by head."""
    ties_embeddings: bool
    """The head is the table of embeddings."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "CpuModelShape":
        """Take back what ``dataclasses.asdict`` gave and JSON kept.

        Raises:
            TypeError: a field is missing, or there is one too many.
        """
        taken: dict[str, Any] = {
            name: tuple(item) if isinstance(item, list) else item
            for name, item in value.items()
        }
        return cls(**taken)
