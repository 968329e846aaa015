"""A stand for answers of a given form: vocabularies, a sampler, all kinds of logits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from hybrid.grammar.compiler import GrammarCompiler
from hybrid.sampler.sampler import Sampler
from hybrid.scheduler import FinishReason, GrammarKind, StructuredOutput
from tests.hybrid.sampler_stand import make_request, step

SPECIAL = ("<|end|>", "<|stop|>", "<|call|>")
EOS = (0, 1)
CORPUS = (
    '{"name": "Alice", "age": 30, "tags": ["a", "b"]}, true, false, null\n',
    "the quick brown fox; 12345 67890 -1.5e10  \t  <f=a>{}</f>",
    "\u00e9t\u00e9 \u03a9\u03c0 \u6f22\u5b57 \U0001f600",
)
NUM_PADDING_COLUMNS = 7
"""The model's head is larger than the vocabulary, as many are."""
MAX_TOKENS = 4000

Rows = Callable[[int, int], NDArray[np.float32]]
"""From a position and a number of columns to logits, float32 ``[columns]``."""


@cache
def byte_level() -> Tokenizer:
    """A small byte-level BPE: special tokens first, one added token that is text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_tokens([AddedToken("<tool \u00e9>", normalized=False)])
    return tokenizer


@cache
def byte_fallback() -> Tokenizer:
    """A vocabulary as SentencePiece's: words with a low line, bytes for the rest."""
    characters = ["\u2581", *'abcdehlrtuxy01259{}[]":,.-+<>=/']
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    merges = [("\u2581", "a"), ("t", "r"), ("tr", "u"), ("tru", "e"), ('"', ":")]
    pieces += ["".join(pair) for pair in merges]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


@cache
def compiler_of(
    make: Callable[[], Tokenizer] = byte_level, eos: Sequence[int] = EOS
) -> GrammarCompiler:
    """A compiler over one of the vocabularies."""
    tokenizer = make()
    return GrammarCompiler(tokenizer, num_ids(tokenizer), eos)


def num_ids(tokenizer: Tokenizer) -> int:
    """Highest id + 1."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def random_logits(seed: int) -> Rows:
    """Logits that favour nothing."""

    def row(position: int, columns: int) -> NDArray[np.float32]:
        rng = np.random.default_rng((seed, position))
        return rng.standard_normal(columns).astype(np.float32) * 3

    return row


def hostile_logits(favoured: Sequence[int]) -> Rows:
    """Logits that want some ids at every position, and by far."""

    def row(position: int, columns: int) -> NDArray[np.float32]:
        rows = random_logits(position)(position, columns)
        rows[[token_id % columns for token_id in favoured]] += 1e4
        return rows

    return row


@dataclass(frozen=True)
class Answer:
    """What a sampler drew, without the end."""

    text: str
    token_ids: list[int]
    reason: FinishReason | None
    """``STOP`` for the model's own end, ``LENGTH`` for none, ``ERROR`` for a fault."""


def answer(
    output: StructuredOutput,
    rows: Rows,
    *,
    make: Callable[[], Tokenizer] = byte_level,
    eos: Sequence[int] = EOS,
    max_tokens: int = MAX_TOKENS,
    **params: object,
) -> Answer:
    """Draw one answer, token by token, from what ``rows`` gives."""
    tokenizer = make()
    columns = num_ids(tokenizer) + NUM_PADDING_COLUMNS
    sampler = Sampler(columns, num_valid_ids=num_ids(tokenizer))
    request = make_request(eos=eos, structured_output=output, **params)
    sampler.add_request(request, compiler_of(make, eos).compile(output))
    drawn: list[int] = []
    reason = FinishReason.LENGTH
    while len(drawn) < max_tokens:
        sampled = step(sampler, [(request, rows(len(drawn), columns))])
        token_id = sampled.token_ids[0][0]
        if sampled.failed or token_id in eos:
            reason = FinishReason.ERROR if sampled.failed else FinishReason.STOP
            break
        drawn.append(token_id)
    text = tokenizer.decode(drawn, skip_special_tokens=False)
    return Answer(text, drawn, reason)


def form(kind: str, text: str = "", choices: Sequence[str] = ()) -> StructuredOutput:
    """A form by the name of its kind."""
    return StructuredOutput(GrammarKind(kind), text, tuple(choices))
