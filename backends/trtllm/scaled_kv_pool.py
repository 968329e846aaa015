"""A paged pool of one-byte floats: half the memory, K and V rounded to 8 bits.

Source: TensorRT-LLM 1.2, ``QuantMode.FP8_KV_CACHE``: stored = saturate(true / scale).
"""

from typing import Final

import torch

from hybrid.backends.pytorch.kv_pool import TORCH_DTYPES, KVPool
from hybrid.bridge import KVLayout, KVOrder

from .attention import AttentionNeeds

FP8: Final = "float8_e4m3fn"
FP8_MAX: Final = 448.0
"""Largest finite number of ``float8_e4m3fn``. Beyond it there is NaN alone, which some
versions of torch make of what does not fit, where kernels saturate."""


class ScaledKVPool(KVPool):
    """K and V in ``float8_e4m3fn``; ``scale`` times a stored number is the true one.

    Raises:
        ConfigError: the memory cannot be had.
    """

    def __init__(
        self,
        layout: KVLayout,
        device: torch.device,
        *,
        scale: float,
        computed_dtype: torch.dtype,
    ) -> None:
        super().__init__(layout, device)
        self._scale: Final = scale
        self._computed_dtype: Final = computed_dtype

    @property
    def is_exact(self) -> bool:
        """Never: three bits of mantissa are kept."""
        return False

    def _gather(self, first_row: int, rows: torch.Tensor) -> torch.Tensor:
        stored = super()._gather(first_row, rows).view(torch.float8_e4m3fn)
        # In float32, then rounded once, as a kernel that folds the scale in does.
        return (stored.float() * self._scale).to(self._computed_dtype)

    def _stored(self, new: torch.Tensor) -> torch.Tensor:
        scaled = (new.float() / self._scale).clamp(-FP8_MAX, FP8_MAX)
        return scaled.to(torch.float8_e4m3fn).view(torch.uint8)


def make_pool(needs: AttentionNeeds, num_blocks: int) -> KVPool:
    """Allocate a block-first pool for a model.

    Raises:
        ConfigError: the memory cannot be had.
    """
    layout = KVLayout(
        num_blocks=num_blocks,
        num_layers=len(needs.windows),
        num_kv_heads=needs.num_kv_heads,
        block_size=needs.block_size,
        head_dim=needs.head_dim,
        dtype=needs.kv_dtype,
        order=KVOrder.BLOCK_FIRST,
    )
    device = torch.device(needs.device)
    if needs.kv_dtype == FP8:
        dtype = TORCH_DTYPES[needs.dtype]
        return ScaledKVPool(layout, device, scale=needs.kv_scale, computed_dtype=dtype)
    return KVPool(layout, device)
