"""transformers' own attention over K and V that were rounded to 8-bit floats."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import torch
from transformers import AttentionInterface
from transformers.models.llama.modeling_llama import eager_attention_forward

from hybrid.testing import (
    Answer,
    ExecutorConformance,
    LoadedExecutor,
    TokenIds,
    transformers_answers,
)

ROUNDED: Final = "eager_over_float8"
"""transformers' name of the function, once ``register`` was called."""


def rounded(states: torch.Tensor) -> torch.Tensor:
    """Round to ``float8_e4m3fn`` and back."""
    return states.to(torch.float8_e4m3fn).to(states.dtype)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    result: tuple[torch.Tensor, torch.Tensor] = eager_attention_forward(
        module, query, rounded(key), rounded(value), attention_mask, **kwargs
    )
    return result


def register() -> None:
    """Make the function known to transformers."""
    from transformers.masking_utils import (  # noqa: PLC0415 - only for oracles
        AttentionMaskInterface,
        eager_mask,
    )

    AttentionInterface.register(ROUNDED, _attend)
    AttentionMaskInterface.register(ROUNDED, eager_mask)


class RoundedCacheConformance(ExecutorConformance):
    """A cache of 8-bit floats: transformers' answers over as coarse K and V."""

    architectures: ClassVar[Sequence[str]] = ("llama",)
    block_sizes: ClassVar[Sequence[int] | None] = (16,)
    logit_tolerance: ClassVar[float] = 4.0
    """A number between two 8-bit floats may fall to either side."""

    def reference(
        self, loaded: LoadedExecutor, prompts: Sequence[TokenIds], num_tokens: int
    ) -> list[Answer]:
        """Ask transformers, its K and V rounded."""
        register()
        assert loaded.source is not None
        folder = loaded.source.path
        return transformers_answers(
            folder, prompts, num_tokens, attn_implementation=ROUNDED
        )
