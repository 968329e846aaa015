"""Holds memory that somebody laid out against what kernels assume of its cells."""

from hybrid.scheduler.errors import ConfigError

from .kv_layout import KVLayout


def check_cells(layout: KVLayout, strides: tuple[int, ...]) -> None:
    """Refuse memory that a kernel would misread in silence.

    A kernel is told where cells begin; within one it goes by its own arithmetic:
    ``[head, token, dim]``, dense.

    Args:
        layout: the sizes.
        strides: elements between neighbours along each logical axis (block, layer, K or
            V, head, token, dim), as the memory has them.

    Raises:
        ConfigError: it is token-major (NHD), its cells have gaps, or they do not begin
            at whole multiples of a cell; names the strides.
    """
    heads, tokens, dims = layout.num_kv_heads, layout.block_size, layout.head_dim
    found = strides[3:]
    # An axis of one element has no stride that matters.
    is_dense = all(
        size == 1 or have == want
        for size, have, want in zip(
            (heads, tokens, dims), found, (tokens * dims, dims, 1), strict=True
        )
    )
    if not is_dense:
        is_token_major = found == (dims, heads * dims, 1)
        what = "are token-major (NHD)" if is_token_major else "are not dense"
        raise ConfigError(
            f"KV memory: its cells {what}: strides of head, token, dim are {found}, "
            f"must be {(tokens * dims, dims, 1)} (HND)"
        )
    for axis, size, stride in zip(
        ("block", "layer", "K to V"),
        (layout.num_blocks, layout.num_layers, layout.kv_factor),
        strides[:3],
        strict=True,
    ):
        if size > 1 and stride % layout.cell_elements:
            raise ConfigError(
                f"KV memory: the stride of {axis} is {stride} elements, must be a "
                f"multiple of a cell's {layout.cell_elements}"
            )
