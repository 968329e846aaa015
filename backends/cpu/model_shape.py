"""What the plan of a Llama-shaped model is made from. Knows no library of models."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Final

from hybrid.scheduler.shown_value import shown

MAX_COUNT: Final = (1 << 31) - 1
"""The kernels take counts as int32; ctypes would cut a larger one in silence."""


def is_count(value: object) -> bool:
    """Whether it is a whole number from 1 on that the kernels can take."""
    return type(value) is int and 1 <= value <= MAX_COUNT


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
            ValueError: a value is none that a model can have; names it.
        """
        taken: dict[str, Any] = {
            name: tuple(item) if isinstance(item, list) else item
            for name, item in value.items()
        }
        shape = cls(**taken)
        shape._check_values()
        shape._check_lengths()
        return shape

    def _check_values(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int:
                is_good = is_count(value)
            elif field.type is float:
                is_good = type(value) in (int, float) and isfinite(value)
            else:
                is_good = field.type not in (bool, str) or type(value) is field.type
            if not is_good:
                raise ValueError(f"{field.name} is {shown(value)}")

    def _check_lengths(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads is {self.num_heads}, no multiple of num_kv_heads, "
                f"{self.num_kv_heads}"
            )
        if 2 * len(self.inverse_frequencies) != self.head_dim:
            raise ValueError(
                f"{len(self.inverse_frequencies)} inverse_frequencies, head_dim is "
                f"{self.head_dim}"
            )
        if len(self.windows) != self.num_layers:
            raise ValueError(
                f"{len(self.windows)} windows, num_layers is {self.num_layers}"
            )
        if not all(window is None or is_count(window) for window in self.windows):
            raise ValueError(f"windows are {shown(self.windows)}")
        if not all(
            type(number) is float and isfinite(number)
            for number in self.inverse_frequencies
        ):
            raise ValueError("inverse_frequencies are no numbers")
