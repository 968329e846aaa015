"""Small real tokenizers for detokeniser tests, one per family of decoder."""

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
WORDS = ["▁", "▁Hello", "▁world", "He", "llo", "▁▁", "é", "▁é", "!", "�"]
FIRST_BYTE = 3
CORPUS = [
    "Hello world, hello tokens. The quick brown fox jumps over the lazy dog.",
    "Ça va? é Ω 漢字漢字 你好,世界。你好,世界。 naïve façade 👩‍👩‍👧‍👦👩‍👩‍👧‍👦",
]


class CountingDecoder:
    """A tokenizer as the detokeniser sees it; counts what it is asked to decode."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.num_calls = 0
        self.num_tokens = 0

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Decode, and count."""
        self.num_calls += 1
        self.num_tokens += len(token_ids)
        text = self.tokenizer.decode(
            list(token_ids), skip_special_tokens=skip_special_tokens
        )
        assert isinstance(text, str)
        return text


def byte_level() -> Tokenizer:
    """GPT-2's kind: every token is a run of bytes, also across characters."""
    tokenizer = Tokenizer(models.BPE())
    # Without a split at characters, merges cross their boundaries.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<plain>", special=False)])
    return tokenizer


def sentence_piece(*, metaspace: bool = False) -> Tokenizer:
    """Llama 2's kind: words with a leading space, bytes for what has no word."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {f"<0x{byte:02X}>": FIRST_BYTE + byte for byte in range(256)}
    for word in WORDS:
        vocab[word] = len(vocab)
    for character in "abcdefghijklmnopqrstuvwxyzHW,.":
        vocab[character] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    if metaspace:
        tokenizer.decoder = decoders.Sequence(
            [decoders.ByteFallback(), decoders.Metaspace()]
        )
    else:
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    return tokenizer


def as_bytes(values: Iterable[int]) -> list[int]:
    """The byte tokens of a ``sentence_piece`` tokenizer."""
    return [FIRST_BYTE + value for value in values]


def token_bytes(tokenizer: Tokenizer) -> dict[int, bytes]:
    """What each id of ``byte_level`` stands for, specials as nothing."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in visible}
    hidden = [byte for byte in range(256) if byte not in visible]
    table |= {chr(256 + index): byte for index, byte in enumerate(hidden)}
    found = {}
    for piece, token_id in tokenizer.get_vocab().items():
        if piece in {"<s>", "</s>"}:
            found[token_id] = b""
        elif piece == "<plain>":
            found[token_id] = piece.encode()
        else:
            found[token_id] = bytes(table[character] for character in piece)
    return found
