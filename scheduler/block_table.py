"""One sequence's blocks in the order of its positions."""

from .block_hash import BlockHash


class BlockTable:
    """Mutable, owned by one sequence, changed by the block manager only.

    ::

        position   0 ........ 7 | 8 ....... 15 | 16 .. 19 |
        block_ids      5        |      9       |    2     |      block_size 8
                   <-- committed (findable) --> <- tail ->
    """

    __slots__ = (
        "block_hashes",
        "block_ids",
        "is_publishable",
        "num_committed_blocks",
        "num_slots",
        "root_hash",
        "shares_tail",
    )

    def __init__(self, root_hash: BlockHash) -> None:
        self.root_hash = root_hash
        self.block_ids: tuple[int, ...] = ()
        """Replaced when it grows, never changed: plans share it for nothing."""
        self.num_slots = 0
        """Tokens that ``block_ids`` have room for."""
        self.block_hashes: list[BlockHash] = []
        """Hashes of the first full blocks of tokens, as far as they were needed; they
        outlive the blocks, for a sequence's tokens never change."""
        self.num_committed_blocks = 0
        """Leading blocks that were computed in full and offered to the cache."""
        self.is_publishable = True
        """False after a hash collision: no later block may be published."""
        self.shares_tail = False
        """Whether the last block is partial and came from a fork: the next write must
        look whether others still own it."""
