"""Writes a step's new K and V into the pool, for kernels that only read it.

Takes the rows as our model makes them, each token's queries, keys and values end to
end, and puts every (token, head) run of ``head_dim`` numbers where the slot mapping
says: one pass over what is new, whatever the pool's order.
"""

import torch

from .scaled_kv_pool import FP8_MAX


def scatter_kv(
    qkv: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    kv_scale: float,
) -> None:
    """Write each token's K and V: by one kernel on a GPU, by indexing elsewhere.

    Args:
        qkv: ``[N, (num_heads + 2 * num_kv_heads) * head_dim]``, contiguous.
        keys: one layer's K in the pool, ``[blocks, num_kv_heads, block_size,
            head_dim]``, cells dense, blocks at any stride.
        values: as ``keys``, of equal strides.
        slots: int64 ``[N]``: ``block * block_size + place in the block``.
        kv_scale: what is stored times this is the true number; used where the pool
            holds ``float8_e4m3fn``, in which what lies beyond +-448 becomes that.
    """
    write = scatter_by_kernel if qkv.is_cuda else scatter_by_indexing
    write(qkv, keys, values, slots, kv_scale)


def scatter_by_indexing(
    qkv: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    kv_scale: float,
) -> None:
    """Write K and V in plain torch, as ``scatter_kv``: the reference."""
    _, num_kv_heads, block_size, head_dim = keys.shape
    width = num_kv_heads * head_dim
    blocks, places = slots // block_size, slots % block_size
    for cells, end in ((keys, qkv.shape[1] - width), (values, qkv.shape[1])):
        new = qkv[:, end - width : end].view(-1, num_kv_heads, head_dim)
        if cells.dtype == torch.float8_e4m3fn:
            new = (new.float() / kv_scale).clamp(-FP8_MAX, FP8_MAX)
        cells[blocks, :, places] = new.to(cells.dtype)


def scatter_by_kernel(
    qkv: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    kv_scale: float,
) -> None:
    """Write K and V by a Triton kernel, as ``scatter_kv``.

    Raises:
        ImportError: Triton is not installed.
    """
    from .kv_scatter_kernel import launch_scatter  # noqa: PLC0415 - needs Triton

    launch_scatter(qkv, keys, values, slots, kv_scale)
