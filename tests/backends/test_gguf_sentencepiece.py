"""A GGUF's SentencePiece vocabulary gives SentencePiece's own ids."""

import io
from pathlib import Path

import gguf
import pytest
import sentencepiece
import transformers
from tokenizers import Tokenizer, models

from tests.backends.tokenizer_stand import Describe, write


@pytest.fixture(scope="module")
def spm() -> sentencepiece.SentencePieceProcessor:
    """Train a SentencePiece BPE model as Llama 2's was: bytes, dummy prefix."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(
            [
                "Hello hello world, the world is wide and the words are many.",
                "we will see 12345 and 67890 again and again and again",
                "the quick brown fox jumps over the lazy dog",
            ]
            * 4
        ),
        model_writer=model,
        model_type="bpe",
        vocab_size=340,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def describe_spm(
    spm: sentencepiece.SentencePieceProcessor, **settings: bool
) -> Describe:
    """Describe a SentencePiece vocabulary as llama.cpp's converter does."""

    def describe(writer: gguf.GGUFWriter) -> None:
        ids = range(spm.get_piece_size())
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([spm.id_to_piece(index) for index in ids])
        writer.add_token_scores([spm.get_score(index) for index in ids])
        kinds = (
            (spm.is_unknown, 2),
            (spm.is_control, 3),
            (spm.is_byte, 6),
        )
        writer.add_token_types(
            [next((kind for test, kind in kinds if test(i)), 1) for i in ids]
        )
        writer.add_unk_token_id(0)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        for name, value in settings.items():
            getattr(writer, f"add_{name}")(value)

    return describe


SPM_TEXTS = [
    "Hello world, the words are many 12345",
    "  two spaces  inside ",
    "bytes: \u6f22\U0001f600 \u00e9\n\ttab",
    "the the the againandagain",
    "x",
    "",
]


@pytest.mark.parametrize("text", SPM_TEXTS)
def test_scores_without_merges_equal_sentencepiece(
    tmp_path: Path, spm: sentencepiece.SentencePieceProcessor, text: str
) -> None:
    """A vocabulary with scores alone gives SentencePiece's own ids, and text back."""
    directory = write(tmp_path, describe_spm(spm))
    ours = Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = ours.encode(text, add_special_tokens=False).ids
    assert ids == spm.encode(text)
    assert ours.decode(ids) == spm.decode(ids)
    assert ours.decode(ids) == text


@pytest.mark.parametrize("add_bos", [True, False, None])
@pytest.mark.parametrize("add_eos", [True, False, None])
def test_sentencepiece_adds_bos_unless_told_otherwise(
    tmp_path: Path,
    spm: sentencepiece.SentencePieceProcessor,
    add_bos: bool | None,
    add_eos: bool | None,
) -> None:
    """One BOS by default, EOS only on request, never two."""
    given = {"add_bos_token": add_bos, "add_eos_token": add_eos}
    told = {name: value for name, value in given.items() if value is not None}
    directory = write(tmp_path, describe_spm(spm, **told))
    ids = spm.encode("Hello world")
    first = [1] if add_bos is not False else []
    last = [2] if add_eos else []
    for tokenizer in (
        Tokenizer.from_file(str(directory / "tokenizer.json")),
        transformers.AutoTokenizer.from_pretrained(str(directory)).backend_tokenizer,
    ):
        assert tokenizer.encode("Hello world").ids == [*first, *ids, *last]


def test_space_prefix_can_be_off(
    tmp_path: Path, spm: sentencepiece.SentencePieceProcessor
) -> None:
    """Without the prefix, text neither gains nor loses its first space."""
    directory = write(tmp_path, describe_spm(spm, add_space_prefix=False))
    ours = Tokenizer.from_file(str(directory / "tokenizer.json"))
    for text in ("hello", " hello"):
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids) == text


def test_listed_merges_are_used(tmp_path: Path) -> None:
    """A SentencePiece vocabulary that lists its merges is merged by them."""
    tokens = ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", "\u2581a"]

    def describe(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_types([2, 3, 3, 1, 1, 1, 1, 1])
        writer.add_token_merges(["a b"])
        writer.add_bos_token_id(1)

    directory = write(tmp_path, describe)
    ours = Tokenizer.from_file(str(directory / "tokenizer.json"))
    model = models.BPE(
        vocab={token: index for index, token in enumerate(tokens)}, merges=[("a", "b")]
    )
    expected = Tokenizer(model).encode("\u2581ab").ids
    assert ours.encode("ab", add_special_tokens=False).ids == expected
