"""What a directory's files say of its tokenizer, whoever has read them."""

from collections.abc import Mapping
from dataclasses import dataclass

import tokenizers


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """A tokenizer as its files describe it."""

    backend: tokenizers.Tokenizer
    """What encodes and decodes, all added tokens included."""
    special_tokens: Mapping[str, str]
    """``bos_token`` and the like, as templates read them."""
    chat_template: object
    """One template, several by name, or ``None``; not looked at yet."""
