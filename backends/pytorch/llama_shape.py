"""What our Llama-shaped model takes from a configuration, or why it cannot."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hybrid.scheduler.errors import UnsupportedFeature

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MODEL_TYPES: Final = ("llama", "mistral", "qwen2", "qwen3")
"""transformers' names of the architectures that are Llama-shaped."""


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes of a decoder, and what each of its layers sees."""

    architecture: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Factor of the scores before the softmax."""
    windows: tuple[int | None, ...]
    """For each layer, tokens that a query sees, itself included; ``None``: all."""
    vocab_size: int
    max_model_len: int
    """Most positions it was made for."""

    @classmethod
    def of(cls, loaded: "PreTrainedModel", executor: str) -> "LlamaShape":
        """Read transformers' loaded model.

        Args:
            loaded: as transformers made it.
            executor: who asks, for the message.

        Raises:
            UnsupportedFeature: it is not Llama-shaped; names what is not.
        """
        config: Any = loaded.config
        _check_shape(config, executor)
        layers: Any = loaded.model.layers
        attention = layers[0].self_attn
        return cls(
            architecture=type(loaded).__name__,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=attention.head_dim,
            scale=attention.scaling,
            windows=tuple(_window(config, layer.self_attn) for layer in layers),
            vocab_size=config.vocab_size,
            max_model_len=config.max_position_embeddings,
        )


def _check_shape(config: Any, executor: str) -> None:
    found = {
        "model_type": (config.model_type, MODEL_TYPES),
        "hidden_act": (getattr(config, "hidden_act", "silu"), ("silu",)),
    }
    for name, (value, known) in found.items():
        if value not in known:
            raise UnsupportedFeature(
                f"executor {executor} cannot run this model: {name} is {value!r}, "
                f"must be one of {', '.join(known)}; executor torch can run more"
            )


def _window(config: Any, attention: Any) -> int | None:
    """Read a layer's window where its modelling code does."""
    if config.model_type == "mistral":
        window = getattr(config, "sliding_window", None)
    else:
        window = getattr(attention, "sliding_window", None)
    return None if window is None else int(window)
