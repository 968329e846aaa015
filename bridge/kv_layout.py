"""Where the bytes of a block lie: shape, strides and dtype of a paged KV pool.

Knows no tensor: the executor allocates, this says what and where.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Final

from hybrid.scheduler.errors import ConfigError

ELEMENT_BYTES: Final = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "int8": 1,
}
"""Bytes of one element, by torch's name of the dtype."""

LOGICAL_AXES: Final = ("block", "layer", "kv", "head", "token", "dim")


class KVOrder(StrEnum):
    """The physical order of a pool; its axes from the outermost in."""

    BLOCK_FIRST = "block_first"
    """``[block, layer, kv, head, token, dim]``, TensorRT-LLM's own: a block is one run
    of bytes."""
    LAYER_FIRST = "layer_first"
    """``[layer, kv, block, head, token, dim]``: each layer's K and V are one dense
    ``[block, head, token, dim]`` array."""


_AXES: Final = {
    KVOrder.BLOCK_FIRST: ("block", "layer", "kv", "head", "token", "dim"),
    KVOrder.LAYER_FIRST: ("layer", "kv", "block", "head", "token", "dim"),
}


@dataclass(frozen=True, slots=True)
class KVLayout:
    """One pool: ``num_blocks`` blocks of ``block_size`` tokens, all layers, K and V.

    The cell of one (block, layer, K or V) is ``[num_kv_heads, block_size, head_dim]``,
    contiguous in both orders (HND, as in TensorRT-LLM, FlashInfer-HND and OpenVINO).

    Raises:
        ConfigError: a size is below 1 or the dtype is unknown.
    """

    num_blocks: int
    """All blocks of the pool, the null block (id 0) included."""
    num_layers: int
    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype: str = "float32"
    order: KVOrder = KVOrder.LAYER_FIRST
    kv_factor: int = 2
    """Cells of one block and layer: 2 (K and V), or 1 where K is all there is (the
    latent cache of MLA)."""

    def __post_init__(self) -> None:
        """Check the sizes."""
        for name in (
            "num_blocks",
            "num_layers",
            "num_kv_heads",
            "block_size",
            "head_dim",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"KV layout: {name} is {getattr(self, name)}, must be 1 or more"
                )
        if self.kv_factor not in {1, 2}:
            raise ConfigError(
                f"KV layout: kv_factor is {self.kv_factor}, must be 1 (K only) or 2"
            )
        if self.dtype not in ELEMENT_BYTES:
            known = ", ".join(ELEMENT_BYTES)
            raise ConfigError(f"KV layout: dtype {self.dtype!r} is not one of {known}")

    @property
    def logical_shape(self) -> tuple[int, int, int, int, int, int]:
        """Sizes by ``LOGICAL_AXES``: block, layer, kv, head, token, dim."""
        return (
            self.num_blocks,
            self.num_layers,
            self.kv_factor,
            self.num_kv_heads,
            self.block_size,
            self.head_dim,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes in the physical order: what the executor allocates, contiguous."""
        sizes = dict(zip(LOGICAL_AXES, self.logical_shape, strict=True))
        return tuple(sizes[axis] for axis in _AXES[self.order])

    @property
    def to_logical(self) -> tuple[int, ...]:
        """Permutation of the physical axes that yields the logical order."""
        axes = _AXES[self.order]
        return tuple(axes.index(axis) for axis in LOGICAL_AXES)

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each *logical* axis."""
        shape = self.shape
        physical = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return tuple(physical[axis] for axis in self.to_logical)

    @property
    def cell_elements(self) -> int:
        """Elements of one (block, layer, K or V): heads x tokens x dims, one run."""
        return self.num_kv_heads * self.block_size * self.head_dim

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers, K and V."""
        cells = self.kv_factor * self.num_layers
        return cells * self.cell_elements * ELEMENT_BYTES[self.dtype]

    @property
    def total_bytes(self) -> int:
        """Bytes of the pool."""
        return self.num_blocks * self.block_bytes

    def element_offset(
        self, block: int, layer: int, kv: int, head: int, token: int, dim: int
    ) -> int:
        """Elements from the pool's start to one element (``kv``: 0 is K, 1 is V).

        Raises:
            IndexError: a coordinate is outside the pool.
        """
        coordinates = (block, layer, kv, head, token, dim)
        sizes = self.logical_shape
        for axis, value, size in zip(LOGICAL_AXES, coordinates, sizes, strict=True):
            if not 0 <= value < size:
                raise IndexError(f"{axis} is {value}, must be from 0 to {size - 1}")
        pairs = zip(coordinates, self.strides, strict=True)
        return sum(value * stride for value, stride in pairs)
