"""A GGUF's tokenizer gives the ids that the model was trained on."""

import json
from pathlib import Path

import gguf
import pytest
import transformers
from structlog.testing import capture_logs
from tokenizers import Tokenizer, pre_tokenizers

from hybrid.scheduler.errors import CheckpointError
from tests.backends.tiny_checkpoints import (
    MERGES,
    SPECIAL_TOKENS,
    TEMPLATE,
    TOKENS,
    TORTURE,
    add_byte_level_tokenizer,
)
from tests.backends.tokenizer_stand import Describe, write


def byte_level(**options: object) -> Describe:
    """Describe the small byte-level vocabulary."""

    def describe(writer: gguf.GGUFWriter) -> None:
        add_byte_level_tokenizer(writer, **options)

    return describe


def reference(pre: str) -> Tokenizer:
    """Return the tokenizer of the model family that ``pre`` is named for."""
    vocabulary = {token: index for index, token in enumerate(TOKENS)}
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    if pre == "qwen2":
        made = transformers.Qwen2Tokenizer(vocab=vocabulary, merges=merges)
        backend = made.backend_tokenizer
    else:
        made = transformers.GPT2Tokenizer(vocab=vocabulary, merges=merges)
        backend = made.backend_tokenizer
    if pre == "smollm":  # as SmolLM2's own tokenizer.json says
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    return backend


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2"])
def test_byte_level_ids_equal_the_models_own_tokenizer(
    tmp_path: Path, pre: str
) -> None:
    """Digits, contractions, emoji, composed letters and spaces split as in training."""
    directory = write(tmp_path, byte_level(pre=pre))
    ours = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert ours.encode(TORTURE).ids == reference(pre).encode(TORTURE).ids


@pytest.mark.parametrize("pre", ["llama-bpe", "tekken", "gpt-4o", "qwen35", "dbrx"])
def test_split_patterns_equal_transformers(tmp_path: Path, pre: str) -> None:
    """The pattern that a name stands for is the one that transformers knows."""
    directory = write(tmp_path, byte_level(pre=pre))
    ours = Tokenizer.from_file(str(directory / "tokenizer.json"))
    theirs = transformers.AutoTokenizer.from_pretrained(
        str(tmp_path), gguf_file="tokenizer.gguf"
    ).backend_tokenizer
    text = TORTURE + " HTTPServer isn't 1234567 \u0928\u092e\u0938\u094d\u0924\u0947"
    if ours.normalizer is not None:
        text = ours.normalizer.normalize_str(text)
    pieces = ours.pre_tokenizer.pre_tokenize_str(text)
    assert pieces == theirs.pre_tokenizer.pre_tokenize_str(text)


@pytest.mark.parametrize("text", [TORTURE, "\u00e9\u4e2d\U0001f600", " a", ""])
def test_byte_level_text_comes_back(tmp_path: Path, text: str) -> None:
    """Decoding what was encoded gives the text, special tokens included."""
    directory = write(tmp_path, byte_level(pre="gpt-2"))
    ours = Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = ours.encode(text).ids
    assert ours.decode(ids, skip_special_tokens=False) == text


def test_whole_words_ignore_merges_where_the_model_does(tmp_path: Path) -> None:
    """Llama 3 takes a piece that is a token as that token, merges or not."""
    tokens = [*TOKENS, "xyzzy"]
    directory = write(tmp_path, byte_level(pre="llama-bpe", tokens=tokens))
    ours = Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = ours.encode("xyzzy", add_special_tokens=False).ids
    assert ids == [len(TOKENS)]
    directory = write(tmp_path, byte_level(pre="gpt-2", tokens=tokens))
    ours = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert len(ours.encode("xyzzy").ids) > 1


def test_unknown_pre_tokenizer_is_a_loud_warning(tmp_path: Path) -> None:
    """A name that nobody knows is logged with what is done instead."""
    for pre in ("martian", None):
        with capture_logs() as logs:
            write(tmp_path, byte_level(pre=pre))
        (event,) = logs
        assert event["event"] == "tokenizer.pre_tokenizer_unknown"
        assert event["log_level"] == "warning"
        assert event["pre_tokenizer"] == pre


def with_tokens(*tokens: str, **options: object) -> Describe:
    """Describe the byte-level vocabulary with other tokens at its end."""
    return byte_level(tokens=[*TOKENS, *tokens], **options)


def setting(name: str, value: object) -> Describe:
    """Describe the byte-level vocabulary and one setting more."""

    def describe(writer: gguf.GGUFWriter) -> None:
        add_byte_level_tokenizer(writer)
        getattr(writer, name)(value)

    return describe


def unigram(writer: gguf.GGUFWriter) -> None:
    """Describe a kind of tokenizer that is not supported."""
    writer.add_tokenizer_model("t5")
    writer.add_token_list(["a"])


def bare(writer: gguf.GGUFWriter) -> None:
    """Name a kind and give no vocabulary."""
    writer.add_tokenizer_model("gpt2")


def few_types(writer: gguf.GGUFWriter) -> None:
    """Give fewer types than tokens."""
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b"])
    writer.add_token_types([1])


def scoreless(writer: gguf.GGUFWriter) -> None:
    """Give a SentencePiece vocabulary neither merges nor scores."""
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "a"])


@pytest.mark.parametrize(
    ("describe", "fault"),
    [
        (byte_level(merges=None), r"tokenizer\.ggml\.merges is missing"),
        (byte_level(merges=["nospace"]), "'nospace', no pair of tokens"),
        (byte_level(merges=["not there"]), "merges and tokens contradict"),
        (with_tokens(TOKENS[7]), "holds token .* twice"),
        (setting("add_eot_token_id", 99999), "eot_token_id is 99999"),
        (setting("add_pad_token_id", 99999), "padding_token_id is 99999"),
        (unigram, "tokenizer.ggml.model is 't5'; supported: gpt2, llama"),
        (bare, "holds no tokenizer.ggml.tokens"),
        (few_types, "token_type has 1 entries for 2 tokens"),
        (scoreless, r"needs tokenizer\.ggml\.merges, or tokenizer\.ggml\.scores"),
        (lambda _: None, "holds no tokenizer.ggml.tokens"),
    ],
)
def test_incomplete_tokenizers_are_named(
    tmp_path: Path, describe: Describe, fault: str
) -> None:
    """What is missing or contradicts is an error that names the key."""
    with pytest.raises(CheckpointError, match=fault):
        write(tmp_path, describe)


def test_empty_tokens_keep_their_ids(tmp_path: Path) -> None:
    """Vocabularies padded with empty tokens convert; ids stay."""
    directory = write(tmp_path, with_tokens("", "", "tail"))
    ours = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert ours.token_to_id("tail") == len(TOKENS) + 2


@pytest.mark.parametrize(
    ("added", "expected"),
    [({}, [2]), ({"eot": 0}, [0, 2]), ({"eot": 0, "eom": 5}, [0, 2, 5])],
)
def test_end_ids_are_the_union_of_the_files(
    tmp_path: Path, added: dict[str, int], expected: list[int]
) -> None:
    """End of text, of turn and of message all end an answer."""

    def describe(writer: gguf.GGUFWriter) -> None:
        add_byte_level_tokenizer(writer)
        for name, index in added.items():
            getattr(writer, f"add_{name}_token_id")(index)

    directory = write(tmp_path, describe)
    generation = json.loads((directory / "generation_config.json").read_text())
    assert generation["eos_token_id"] == expected


def test_chat_templates_are_kept_with_their_names(tmp_path: Path) -> None:
    """One template stays text, several keep their names, none stays none."""
    plain = write(tmp_path, byte_level())
    config = json.loads((plain / "tokenizer_config.json").read_text())
    assert config["chat_template"] == TEMPLATE

    def describe(writer: gguf.GGUFWriter) -> None:
        add_byte_level_tokenizer(writer, template=None)
        writer.add_chat_template(
            [
                {"name": "default", "template": "d"},
                {"name": "tool_use", "template": "t"},
            ]
        )

    named = write(tmp_path, describe)
    loaded = transformers.AutoTokenizer.from_pretrained(str(named))
    assert loaded.chat_template == {"default": "d", "tool_use": "t"}
    none = write(tmp_path, byte_level(template=None))
    config = json.loads((none / "tokenizer_config.json").read_text())
    assert "chat_template" not in config


@pytest.mark.parametrize("add_bos", [True, False, None])
@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe"])
def test_bos_is_added_as_the_file_says(
    tmp_path: Path, add_bos: bool | None, pre: str
) -> None:
    """True and false are obeyed; where the file is silent the family decides."""

    def describe(writer: gguf.GGUFWriter) -> None:
        add_byte_level_tokenizer(writer, pre=pre)
        if add_bos is not None:
            writer.add_add_bos_token(add_bos)

    directory = write(tmp_path, describe)
    expected = pre == "llama-bpe" if add_bos is None else add_bos
    for tokenizer in (
        Tokenizer.from_file(str(directory / "tokenizer.json")),
        transformers.AutoTokenizer.from_pretrained(str(directory)).backend_tokenizer,
    ):
        ids = tokenizer.encode("Hello").ids
        assert (ids[0] == 1) is expected
        assert ids.count(1) == int(expected)
