"""The chained hash by which a full block is found again: root and link.

Knows bytes only: no pool, no request.
"""

import struct
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final, NewType

BlockHash = NewType("BlockHash", bytes)
"""Names a block's contents together with everything before it in its sequence."""

DIGEST_BYTES: Final = 16
_ABSENT: Final = b"\x00"
_PRESENT: Final = b"\x01"


def hash_root(
    cache_domain: Iterable[tuple[str, str]],
    adapter: str | None,
    cache_salt: str | None,
) -> BlockHash:
    """Hash what changes KV contents besides tokens: the parent of every first block.

    The encoding is injective: each part has its own place, a tag that tells absent from
    empty, and its length before it. So an adapter "X" never meets a salt "X", nor
    ("a", "b") the pair ("ab", "").
    """
    pairs = list(cache_domain)
    parts = [struct.pack("<Q", len(pairs))]
    for name, value in pairs:
        parts += (_encode_text(name), _encode_text(value))
    parts += (_encode_text(adapter), _encode_text(cache_salt))
    digest = blake2b(
        b"".join(parts), digest_size=DIGEST_BYTES, person=b"hybrid.kv.root"
    )
    return BlockHash(digest.digest())


def hash_block(parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
    """Hash one full block: its parent's hash (fixed length), then 8 bytes per id."""
    payload = parent + array("q", token_ids).tobytes()
    digest = blake2b(payload, digest_size=DIGEST_BYTES, person=b"hybrid.kv.block")
    return BlockHash(digest.digest())


def _encode_text(text: str | None) -> bytes:
    if text is None:
        return _ABSENT
    # A salt comes from a caller and may hold lone surrogates.
    data = text.encode("utf-8", "surrogatepass")
    return _PRESENT + struct.pack("<Q", len(data)) + data
