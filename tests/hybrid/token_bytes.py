"""The bytes of a token, worked out from the formats' own rules: an oracle.

Byte-level: GPT-2's table (``bytes_to_unicode`` of its encoder.py). With a fallback:
SentencePiece's ``<0xAB>`` and U+2581 for a space.
"""

import re
from functools import cache

from tokenizers import Tokenizer, models


@cache
def _byte_of_character() -> dict[str, int]:
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    table = {chr(byte): byte for byte in plain}
    return table | {chr(256 + place): byte for place, byte in enumerate(others)}


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """What one token stands for in a text."""
    added = tokenizer.get_added_tokens_decoder().get(token_id)
    if added is not None:
        return added.content.encode()
    token = tokenizer.id_to_token(token_id)
    assert token is not None
    assert isinstance(tokenizer.model, models.BPE)
    if not tokenizer.model.byte_fallback:
        return bytes(_byte_of_character()[character] for character in token)
    match = re.fullmatch("<0x([0-9A-F]{2})>", token)
    return bytes([int(match[1], 16)]) if match else token.replace("▁", " ").encode()
