"""Small tokenizers of every kind, saved as Hugging Face does."""

import json
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import trainers as ways

TEXT = (
    "Hello hello world, the world's words: we'll see 12345 and 67890 again and again.",
    "  the quick brown fox jumps over the lazy dog;\n\n\tx = 1\n",
    "\u00e9t\u00e9 \u03a9\u03c0 \u6f22\u5b57\u6f22\u5b57",
)
NAMES = ("<unk>", "<s>", "</s>")
SPACE = "\u2581"


def byte_level() -> Backend:
    """Byte-level BPE that keeps digits apart, as SmolLM2's."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = ways.BpeTrainer(
        vocab_size=400,
        special_tokens=list(NAMES),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(TEXT, trainer)
    return backend


def sentencepiece() -> Backend:
    """BPE over U+2581 that falls back to bytes, as Llama 2's."""
    backend = Backend(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = ways.BpeTrainer(
        vocab_size=500, special_tokens=[*NAMES, *pieces], show_progress=False
    )
    backend.train_from_iterator(TEXT, trainer)
    return _without_added(backend, pieces)


def unigram() -> Backend:
    """SentencePiece's other model, as T5's."""
    backend = Backend(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = ways.UnigramTrainer(
        vocab_size=80,
        special_tokens=list(NAMES),
        unk_token="<unk>",
        show_progress=False,
    )
    backend.train_from_iterator(TEXT, trainer)
    return backend


def word_piece() -> Backend:
    """WordPiece over lower-cased words, as BERT's."""
    backend = Backend(models.WordPiece(unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = ways.WordPieceTrainer(
        vocab_size=120, special_tokens=list(NAMES), show_progress=False
    )
    backend.train_from_iterator(TEXT, trainer)
    return backend


KINDS: dict[str, Callable[[], Backend]] = {
    kind.__name__: kind for kind in (byte_level, sentencepiece, unigram, word_piece)
}


def add_ends(backend: Backend, *, bos: bool, eos: bool) -> Backend:
    """Have ``<s>`` and ``</s>`` added around every text."""
    parts = [*(["<s>"] if bos else []), "$A", *(["</s>"] if eos else [])]
    special = [(name, backend.token_to_id(name)) for name in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing(
        single=" ".join(parts), special_tokens=special
    )
    return backend


def save_tokenizer(folder: Path, backend: Backend, **settings: object) -> Path:
    """Write tokenizer.json and a tokenizer_config.json; ``None`` leaves a key out."""
    backend.save(str(folder / "tokenizer.json"))
    usual: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "model_max_length": 512,
    }
    wanted = {k: v for k, v in (usual | settings).items() if v is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(wanted))
    return folder


def _without_added(backend: Backend, tokens: list[str]) -> Backend:
    """The same vocabulary, ``tokens`` being ordinary ones."""
    content = json.loads(backend.to_str())
    content["added_tokens"] = [
        entry for entry in content["added_tokens"] if entry["content"] not in tokens
    ]
    return Backend.from_str(json.dumps(content))
