"""A GGUF's vocabulary: tokens, their types, and the ids with a meaning of their own."""

from dataclasses import dataclass
from typing import Final, Self

from hybrid.scheduler.errors import CheckpointError

from .gguf_header import GGUFHeader

NORMAL: Final = 1
UNKNOWN: Final = 2
CONTROL: Final = 3
USER_DEFINED: Final = 4
# What files without an end-of-turn id call the token, most specific first, as llama.cpp
# looks for it.
_END_OF_TURN: Final = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")


@dataclass(frozen=True, slots=True)
class GGUFVocabulary:
    """Tokens and their types, checked against each other."""

    header: GGUFHeader
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    """GGUF's token types, one a token."""

    @classmethod
    def from_header(cls, header: GGUFHeader) -> Self:
        """Read and check the vocabulary.

        Raises:
            CheckpointError: it is missing, or holds a token twice, or an id with a
                meaning lies outside of it.
        """
        tokens = header.strings("tokenizer.ggml.tokens")
        if not tokens:
            raise CheckpointError(f"{header.path} holds no tokenizer.ggml.tokens")
        # Files pad with empty tokens; these need names to stay distinct.
        tokens = tuple(
            token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)
        )
        if len(set(tokens)) != len(tokens):
            raise CheckpointError(
                f"{header.path}: the vocabulary holds token "
                f"{_first_repeated(tokens)!r} twice"
            )
        types = list(_types(header, len(tokens)))
        vocabulary = cls(header, tokens, tuple(types))
        # Some files call their BOS or EOS a normal token; llama.cpp corrects that too.
        for name in ("bos", "eos", "eot", "eom"):
            if (index := vocabulary.special_id(name)) is not None:
                types[index] = CONTROL
        return cls(header, tokens, tuple(types))

    def special_id(self, name: str) -> int | None:
        """The id that the file gives as ``tokenizer.ggml.<name>_token_id``.

        Raises:
            CheckpointError: it is outside the vocabulary.
        """
        key = f"tokenizer.ggml.{name}_token_id"
        index = self.header.integer(key)
        if index is not None and not 0 <= index < len(self.tokens):
            raise CheckpointError(
                f"{self.header.path}: {key} is {index}, the vocabulary has "
                f"{len(self.tokens)} tokens"
            )
        return index

    def special_token(self, name: str) -> str | None:
        """The token of that id."""
        index = self.special_id(name)
        return None if index is None else self.tokens[index]

    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends an answer: end of text, of turn and of message, sorted."""
        ids = {self.special_id(name) for name in ("eos", "eot", "eom")}
        if self.special_id("eot") is None:
            ids.add(self._end_of_turn())
        return tuple(sorted(index for index in ids if index is not None))

    def _end_of_turn(self) -> int | None:
        for name in _END_OF_TURN:
            if name in self.tokens:
                index = self.tokens.index(name)
                if self.types[index] == CONTROL:
                    return index
        return None


def _first_repeated(tokens: tuple[str, ...]) -> str:
    seen: set[str] = set()
    for token in tokens:
        if token in seen:
            return token
        seen.add(token)
    raise AssertionError


def _types(header: GGUFHeader, num_tokens: int) -> tuple[int, ...]:
    types = header.numbers("tokenizer.ggml.token_type")
    if types is None:
        return (NORMAL,) * num_tokens
    if len(types) < num_tokens:
        raise CheckpointError(
            f"{header.path}: tokenizer.ggml.token_type has {len(types)} entries for "
            f"{num_tokens} tokens"
        )
    return tuple(int(kind) for kind in types[:num_tokens].tolist())
