"""Translates ids to addresses: layouts, packed batches, block tables."""

from .block_table import NULL_BLOCK, CSRBlockTable, csr_block_table, padded_block_table
from .kv_layout import ELEMENT_BYTES, KVLayout, KVOrder
from .packed_batch import PackedBatch, pack_batch, slot_mapping

__all__ = [
    "ELEMENT_BYTES",
    "NULL_BLOCK",
    "CSRBlockTable",
    "KVLayout",
    "KVOrder",
    "PackedBatch",
    "csr_block_table",
    "pack_batch",
    "padded_block_table",
    "slot_mapping",
]
