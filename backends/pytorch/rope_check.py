"""Refuses rotary embeddings whose angles depend on what else is in the batch.

transformers recomputes the frequencies of some kinds from the largest position of the
whole forward pass: beside a long neighbour a short prompt would be rotated otherwise,
and its cached keys with it.
Source: transformers 5.24, ``modeling_rope_utils.dynamic_rope_update``.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from transformers import PreTrainedConfig

from hybrid.scheduler.errors import UnsupportedFeature

BATCH_DEPENDENT: Final = ("dynamic", "longrope")
"""Their frequencies change once a position reaches the original context."""


def check_rope(config: PreTrainedConfig, max_model_len: int) -> None:
    """Accept a model whose positions stay where its frequencies are constant.

    Args:
        config: the text model's.
        max_model_len: positions that the engine will use.

    Raises:
        UnsupportedFeature: they do not; says which ``max_model_len`` would do.
    """
    for parameters in _rope_parameters(getattr(config, "rope_parameters", None)):
        kind = parameters.get("rope_type")
        if kind not in BATCH_DEPENDENT:
            continue
        original = parameters.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", config.max_position_embeddings
        )
        if max_model_len > original:
            raise UnsupportedFeature(
                f"{config.model_type} has {kind} rotary embeddings, "
                f"whose angles depend on the batch beyond {original} positions; "
                f"max_model_len is {max_model_len}, must be at most {original}"
            )


def _rope_parameters(found: Any) -> Iterator[Mapping[str, Any]]:
    """One mapping, or one for each type of layer."""
    if not isinstance(found, Mapping):
        return
    if "rope_type" in found:
        yield found
    for inner in found.values():
        yield from _rope_parameters(inner)
