"""Our KV pools as TensorRT-LLM's kernels see them: pointers, mapping, steps in cells.

A kernel knows a pool pointer, a layer's number inside that pool and a block's offset,
and nothing else. It finds the cell ``[heads, tokens, dims]`` of (block, layer, K or V)
at

    pointer + layer_in_pool * kv_factor * cell_bytes + offset * cell_bytes

so any memory serves in which a layer's cells lie at whole multiples of ``cell_bytes``::

    order        pools             pointer of layer l   K's offset    V's offset
    block-first  one               base                 b * 2L        + 1
    layer-first  one for a layer   base + l * 2 * B     b             + B   (in cells)

Source: TensorRT-LLM 1.2, ``kernels/kvCacheUtils.h`` (``KVBlockArray``) and
``thop/attentionOp.cpp``; the layer-first row is inferred from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybrid.scheduler.errors import ConfigError

from .kv_layout import ELEMENT_BYTES, KVLayout, KVOrder

MIN_BLOCK_SIZE: Final = 16
"""Below it the operator takes a path that ignores what is cached."""
INT31: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class KernelPool:
    """One pool of the kernel: all layers of a block-first pool, or one layer."""

    byte_offset: int
    """From the first byte of the memory to the first cell of its first layer."""
    cells_per_block: int
    """Cells from a block's K to the next block's."""
    cells_to_value: int
    """Cells from a block's K to its V; 0 where there is K only."""


@dataclass(frozen=True, slots=True)
class TrtllmPools:
    """All pools of one model.

    Raises:
        ConfigError: a layout cannot be addressed so; names the value and the limit.
    """

    layouts: tuple[KVLayout, ...]
    """One for each memory region: layers of other head counts or windows have their
    own. Block ids are the same in all."""
    layers: tuple[tuple[int, ...], ...]
    """For each layout, which layers of the model its layers are."""

    def __post_init__(self) -> None:
        """Refuse what a kernel would misread in silence."""
        if not self.layouts or len(self.layouts) != len(self.layers):
            raise ConfigError(
                f"TensorRT-LLM pools: {len(self.layouts)} layouts, {len(self.layers)} "
                "lists of layers; one list for each layout is needed"
            )
        for layout, layers in zip(self.layouts, self.layers, strict=True):
            _check_layout(layout)
            if len(layers) != layout.num_layers:
                raise ConfigError(
                    f"TensorRT-LLM pools: a layout of {layout.num_layers} layers is "
                    f"given {len(layers)} layers of the model"
                )
        named = sorted(layer for layers in self.layers for layer in layers)
        if named != list(range(len(named))):
            raise ConfigError(
                f"TensorRT-LLM pools: the layers are {named}, must be 0 to "
                f"{len(named) - 1}, each once"
            )
        if len({layout.block_size for layout in self.layouts}) != 1:
            sizes = sorted({layout.block_size for layout in self.layouts})
            raise ConfigError(
                f"TensorRT-LLM pools: block sizes {sizes} differ; one block table "
                "serves all pools"
            )

    @classmethod
    def single(cls, layout: KVLayout) -> "TrtllmPools":
        """Describe a model whose layers are all alike."""
        return cls((layout,), (tuple(range(layout.num_layers)),))

    @property
    def kernel_pools(self) -> tuple[KernelPool, ...]:
        """The kernel's pools: layout by layout, in a layer-first one layer by layer."""
        return tuple(pool for layout in self.layouts for pool in _kernel_pools(layout))

    def mapping(self) -> NDArray[np.int32]:
        """int32 ``[layers, 2]``: each layer's pool, and its number inside it."""
        mapping = np.empty((sum(map(len, self.layers)), 2), dtype=np.int32)
        first_pool = 0
        for layout, layers in zip(self.layouts, self.layers, strict=True):
            for index, layer in enumerate(layers):
                is_shared = layout.order is KVOrder.BLOCK_FIRST
                mapping[layer] = (
                    (first_pool, index) if is_shared else (first_pool + index, 0)
                )
            first_pool += len(_kernel_pools(layout))
        return mapping

    def pointers(
        self, primary: Sequence[int], secondary: Sequence[int] | None = None
    ) -> NDArray[np.int64]:
        """int64 ``[pools, 2]``: addresses of the pools, and of those in host memory.

        Args:
            primary: address of each layout's memory.
            secondary: of its twin in pinned host memory; ``None``: there is none (0).

        Raises:
            ConfigError: not one address for each layout, or a null pointer.
        """
        bases = [primary, secondary or [0] * len(primary)]
        for addresses in bases:
            if len(addresses) != len(self.layouts):
                raise ConfigError(
                    f"TensorRT-LLM pools: {len(addresses)} addresses for "
                    f"{len(self.layouts)} layouts"
                )
        if 0 in primary:
            raise ConfigError("TensorRT-LLM pools: a primary address is 0")
        rows = [
            [base + pool.byte_offset if base else 0 for base in pair]
            for layout, *pair in zip(self.layouts, *bases, strict=True)
            for pool in _kernel_pools(layout)
        ]
        return np.array(rows, dtype=np.int64)


def _kernel_pools(layout: KVLayout) -> tuple[KernelPool, ...]:
    cell_bytes = layout.cell_elements * ELEMENT_BYTES[layout.dtype]
    block, layer, kv, *_ = (stride // layout.cell_elements for stride in layout.strides)
    to_value = kv if layout.kv_factor == 2 else 0
    if layout.order is KVOrder.BLOCK_FIRST:
        return (KernelPool(0, block, to_value),)
    return tuple(
        KernelPool(index * layer * cell_bytes, block, to_value)
        for index in range(layout.num_layers)
    )


def _check_layout(layout: KVLayout) -> None:
    size = layout.block_size
    if size < MIN_BLOCK_SIZE or size & (size - 1):
        raise ConfigError(
            f"TensorRT-LLM pools: block_size is {size}, must be a power of two from "
            f"{MIN_BLOCK_SIZE}"
        )
    cell_bytes = layout.cell_elements * ELEMENT_BYTES[layout.dtype]
    num_cells = layout.num_blocks * layout.num_layers * layout.kv_factor
    limits = {
        "cells of the pool": num_cells,
        "bytes of a cell": cell_bytes,
        # Multiplied in 32 bits on the host.
        "bytes of a block's layers before the last": (
            (layout.num_layers - 1) * layout.kv_factor * cell_bytes
            if layout.order is KVOrder.BLOCK_FIRST
            else 0
        ),
    }
    for what, value in limits.items():
        if value > INT31:
            raise ConfigError(
                f"TensorRT-LLM pools: {what} are {value:,}, must be at most {INT31:,}"
            )
