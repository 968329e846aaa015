"""What a findable block holds. Knows no block id."""

from typing import NamedTuple

from .block_hash import BlockHash


class CachedContents(NamedTuple):
    """Compared in full on every hit."""

    block_hash: BlockHash
    parent_hash: BlockHash
    token_ids: tuple[int, ...]
    is_first: bool
    """Whether it begins its sequence: then its parent is a root and no block."""
