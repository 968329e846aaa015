"""The Triton kernel behind ``scatter_kv``; importing this needs Triton.

Every (token, KV head) has a program of its own, which moves one run of K and one of V.
"""

from typing import Final

import torch
import triton
import triton.language as tl

from .scaled_kv_pool import FP8_MAX

OPTIONS: Final = {"num_warps": 1, "enable_fp_fusion": False}
"""A run is a few hundred bytes. Nothing is fused; unsaid, Triton 3.9 warns of it."""


@triton.jit  # type: ignore[untyped-decorator]
def _scatter(  # noqa: PLR0913, PLR0917 - a kernel takes pointers and numbers, no objects
    qkv: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    slots: tl.tensor,
    kv_scale: float,
    row_stride: int,
    first_key: int,
    num_kv_heads: int,
    block_stride: int,
    block_size: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
    limit: tl.constexpr,
) -> None:
    token, head = tl.program_id(0), tl.program_id(1)
    dims = tl.arange(0, padded_dim)
    is_dim = dims < head_dim
    # 64 bits from the slot on: a pool has more elements than 32 bits count.
    slot = tl.load(slots + token)
    cell = (slot // block_size) * block_stride
    target = cell + (head * block_size + slot % block_size) * head_dim + dims
    source = qkv + token.to(tl.int64) * row_stride + first_key + head * head_dim + dims
    key = tl.load(source, mask=is_dim)
    value = tl.load(source + num_kv_heads * head_dim, mask=is_dim)
    if limit is not None:
        # Division as torch rounds it, so that both ways store the same bits.
        key = tl.clamp(tl.div_rn(key.to(tl.float32), kv_scale), -limit, limit)
        value = tl.clamp(tl.div_rn(value.to(tl.float32), kv_scale), -limit, limit)
    tl.store(keys + target, key.to(keys.dtype.element_ty), mask=is_dim)
    tl.store(values + target, value.to(values.dtype.element_ty), mask=is_dim)


def launch_scatter(
    qkv: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    kv_scale: float,
) -> None:
    """Run the kernel over all tokens and KV heads; shapes as in ``scatter_kv``."""
    _, num_kv_heads, block_size, head_dim = keys.shape
    width = num_kv_heads * head_dim
    _scatter[(len(qkv), num_kv_heads)](
        qkv,
        keys,
        values,
        slots,
        kv_scale,
        qkv.stride(0),
        qkv.shape[1] - 2 * width,
        num_kv_heads,
        keys.stride(0),
        block_size=block_size,
        head_dim=head_dim,
        padded_dim=triton.next_power_of_2(head_dim),
        limit=FP8_MAX if keys.dtype == torch.float8_e4m3fn else None,
        **OPTIONS,
    )
