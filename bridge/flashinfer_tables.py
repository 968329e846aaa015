"""Block tables, and K and V as views, for FlashInfer's TensorRT-LLM kernels.

A kernel takes a layer's K and V as two tensors ``[blocks, heads, tokens, dims]`` and
one table of indices into both. It reads the strides of K alone and follows them in V,
so one geometry must hold for both, at two offsets::

    order        K of layer l    V of layer l    block stride
    block-first  pool[:, l, 0]   pool[:, l, 1]   2 * L * cell
    layer-first  pool[l, 0]      pool[l, 1]      cell

Block ids are the indices. The form that FlashInfer's own wrappers take besides,
``indptr/indices/last_page_len``, is ``csr_block_table``.

Source: FlashInfer 0.7.4, ``flashinfer/decode.py``, ``flashinfer/xqa.py`` and
``csrc/xqa/xqa_wrapper.cu``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.plan import ScheduledRequest

from .kv_layout import KVLayout
from .packed_batch import PackedBatch
from .trtllm_offsets import HostAllocator, zeros_on_host

BLOCK_SIZES: Final = (16, 32, 64, 128)
"""Tokens per block that the kernels are compiled for."""
DIM_STEP: Final = 16
MAX_HEAD_DIM: Final = 256
"""Above it some of the kernels do not exist."""
MAX_CELLS: Final = 2**31 - 1
"""Cells are counted in 32 bits, in tables and in the descriptors of bulk copies."""


@dataclass(frozen=True, slots=True)
class KVViews:
    """K and V of one layer, as places in the pool's memory; all in elements.

    Raises:
        ConfigError: a kernel would misread the cells.
    """

    shape: tuple[int, int, int, int]
    """``[blocks, heads, tokens, dims]``."""
    strides: tuple[int, int, int, int]
    """Of K and of V."""
    key_offset: int
    """From the pool's first element to K's."""
    value_offset: int

    def __post_init__(self) -> None:
        """Refuse cells that are no run of ``[heads, tokens, dims]``."""
        _, _, tokens, dims = self.shape
        dense = (tokens * dims, dims, 1)
        if self.strides[1:] != dense:
            raise ConfigError(
                f"FlashInfer: a cell's strides (head, token, dim) are "
                f"{self.strides[1:]}, must be {dense}: heads outermost, dense"
            )


def kv_views(layout: KVLayout, layer: int) -> KVViews:
    """Say where one layer's K and V lie.

    Args:
        layout: the pool, in either order.
        layer: its number in the pool.

    Raises:
        ConfigError: the kernels cannot read this pool; names the value and the limit.
        IndexError: there is no such layer.
    """
    check_flashinfer_layout(layout)
    block, _, _, head, token, dim = layout.strides
    return KVViews(
        shape=(
            layout.num_blocks,
            layout.num_kv_heads,
            layout.block_size,
            layout.head_dim,
        ),
        strides=(block, head, token, dim),
        key_offset=layout.element_offset(0, layer, 0, 0, 0, 0),
        value_offset=layout.element_offset(0, layer, 1, 0, 0, 0),
    )


def check_flashinfer_layout(layout: KVLayout) -> None:
    """Refuse what the kernels are not compiled for or would misread in silence.

    Raises:
        ConfigError: names the field, its value and the limit.
    """
    if layout.kv_factor != 2:
        raise ConfigError(
            "FlashInfer: kv_factor is 1, must be 2: K and V, each its own"
        )
    if layout.block_size not in BLOCK_SIZES:
        raise ConfigError(
            f"FlashInfer: block_size is {layout.block_size}, must be one of "
            f"{', '.join(map(str, BLOCK_SIZES))}"
        )
    if layout.head_dim % DIM_STEP or layout.head_dim > MAX_HEAD_DIM:
        raise ConfigError(
            f"FlashInfer: head_dim is {layout.head_dim}, must be a multiple of "
            f"{DIM_STEP} up to {MAX_HEAD_DIM}"
        )
    num_cells = layout.num_blocks * layout.num_layers * layout.kv_factor
    if num_cells > MAX_CELLS:
        raise ConfigError(
            f"FlashInfer: the pool has {num_cells:,} cells, must be at most "
            f"{MAX_CELLS:,}"
        )


class BlockTables:
    """int32 ``[max_seqs, max_blocks]`` of block ids in host memory, never moved.

    Row i is the table of the step's entry i, filled up with the null block (0).
    """

    def __init__(
        self,
        *,
        block_size: int,
        max_num_seqs: int,
        max_num_blocks: int,
        allocate: HostAllocator = zeros_on_host,
    ) -> None:
        self.array: Final = allocate((max_num_seqs, max_num_blocks))
        self._block_size: Final = block_size
        # What each row holds: a decode step hands over the very tuples of the last.
        self._tables: list[tuple[int, ...]] = [()] * max_num_seqs

    def update(self, scheduled: Sequence[ScheduledRequest]) -> list[int]:
        """Make row i hold the table of entry i.

        Args:
            scheduled: the step's entries, contexts first.

        Returns:
            Rows that were written, ascending; a copy of all others is still right.

        Raises:
            ConfigError: more sequences or blocks than there are places for.
        """
        max_num_seqs, max_num_blocks = self.array.shape
        if len(scheduled) > max_num_seqs:
            raise ConfigError(
                f"block tables: {len(scheduled)} sequences, must be at most "
                f"{max_num_seqs}"
            )
        written = []
        for row, entry in enumerate(scheduled):
            table, before = entry.block_ids, self._tables[row]
            if table is before or table == before:
                continue
            if len(table) > max_num_blocks:
                raise ConfigError(
                    f"block tables: {entry.key} has {len(table)} blocks, must be at "
                    f"most {max_num_blocks}"
                )
            self.array[row, : len(table)] = table
            self.array[row, len(table) : len(before)] = 0
            self._tables[row] = table
            written.append(row)
        return written

    def slot_mapping(self, batch: PackedBatch) -> NDArray[np.int64]:
        """Where the K and V of each token of the step are written.

        Args:
            batch: of the plan whose entries were last handed to ``update``.

        Returns:
            int64 ``[N]``: ``block_id * block_size + place in the block``.
        """
        rows = np.repeat(np.arange(len(batch.seq_lens)), batch.query_lens)
        index, place = np.divmod(batch.positions, self._block_size)
        blocks = self.array[rows, index].astype(np.int64)
        slots: NDArray[np.int64] = blocks * self._block_size + place
        return slots
