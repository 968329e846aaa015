"""The tokenizer: ids equal transformers', one BOS, text comes back as it was."""

import io
import json
from pathlib import Path

import pytest
import sentencepiece
import transformers
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from hybrid.scheduler.errors import CheckpointError, ConfigError, InvalidRequest
from hybrid.tokenizer.tokenizer import Tokenizer
from tests.backends.tiny_checkpoints import (
    MERGES,
    SPECIAL_TOKENS,
    TEMPLATE,
    TOKENS,
    TORTURE,
)

MESSAGES = [{"role": "user", "content": "Hello world"}]
BOS_TEMPLATE = "{{ bos_token }}" + TEMPLATE


def save(directory: Path, *, adds_bos: bool = False, **config: object) -> Path:
    """Write a small byte-level tokenizer as Hugging Face does."""
    vocabulary = {token: index for index, token in enumerate(TOKENS)}
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
    # As files carry them from training: neither may reach a prompt.
    backend.enable_padding(length=64, pad_id=0, pad_token="<|endoftext|>")
    backend.enable_truncation(3)
    backend.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "TokenizersBackend",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "clean_up_tokenization_spaces": True,
        "chat_template": TEMPLATE,
    }
    text = json.dumps(settings | config)
    (directory / "tokenizer_config.json").write_text(text)
    return directory


def reference(directory: Path) -> transformers.PreTrainedTokenizerBase:
    """Load what users of transformers have."""
    return transformers.AutoTokenizer.from_pretrained(str(directory))


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_ids_equal_transformers(
    tmp_path: Path, adds_bos: bool, add_special_tokens: bool
) -> None:
    """Whole prompts, never padded or cut, BOS where the model adds one."""
    save(tmp_path, adds_bos=adds_bos)
    ours = Tokenizer.from_directory(tmp_path)
    ids = ours.encode(TORTURE, add_special_tokens=add_special_tokens)
    theirs = reference(tmp_path)(TORTURE, add_special_tokens=add_special_tokens)
    assert ids == theirs["input_ids"]
    assert (ids[0] == 1) is (adds_bos and add_special_tokens)
    assert len(ids) > 64


@pytest.mark.parametrize("template", [TEMPLATE, BOS_TEMPLATE])
@pytest.mark.parametrize("adds_bos", [True, False])
def test_chat_has_one_bos_at_most(
    tmp_path: Path, template: str, adds_bos: bool
) -> None:
    """The template's BOS is the only one, whatever the tokenizer would add."""
    save(tmp_path, adds_bos=adds_bos, chat_template=template)
    ours = Tokenizer.from_directory(tmp_path)
    ids = ours.apply_chat_template(MESSAGES)
    theirs = reference(tmp_path).apply_chat_template(
        MESSAGES, add_generation_prompt=True
    )
    assert ids == theirs["input_ids"]
    assert ids[: ids.index(TOKENS.index("u"))].count(1) == 1 + (
        template is BOS_TEMPLATE
    )


def test_text_comes_back_with_every_space(tmp_path: Path) -> None:
    """No clean-up of spaces, even where the files ask for it."""
    ours = Tokenizer.from_directory(save(tmp_path))
    text = "Hello , world ! do n't  stop ."
    assert ours.decode(ours.encode(text), skip_special_tokens=True) == text


def test_special_tokens_are_skipped_on_request(tmp_path: Path) -> None:
    """They are spelled out or left out, nothing else changes."""
    ours = Tokenizer.from_directory(save(tmp_path))
    ids = ours.encode("<|im_start|>Hello<|im_end|>")
    spelled = ours.decode(ids, skip_special_tokens=False)
    assert spelled == "<|im_start|>Hello<|im_end|>"
    assert ours.decode(ids, skip_special_tokens=True) == "Hello"
    assert ours.special_token_ids == {0, 1, 2}


def test_vocabulary_size_counts_to_the_highest_id(tmp_path: Path) -> None:
    """Rows of the model beyond it are padding; decoding one gives nothing."""
    ours = Tokenizer.from_directory(save(tmp_path))
    assert ours.vocab_size == len(TOKENS)
    padded = [ours.vocab_size, ours.vocab_size + 100]
    assert ours.decode(padded, skip_special_tokens=False) == ""
    holes = Backend(models.BPE(vocab={"a": 0, "b": 9}, merges=[]))
    assert Tokenizer(holes).vocab_size == 10


@pytest.mark.parametrize("text", ["\ud800", "ab\udfffcd", "\udc80" * 3])
def test_lone_surrogates_are_the_callers_error(tmp_path: Path, text: str) -> None:
    """Half a character is refused, naming the field and the place."""
    ours = Tokenizer.from_directory(save(tmp_path))
    with pytest.raises(InvalidRequest, match="lone surrogate") as caught:
        ours.encode(text)
    assert caught.value.field == "prompt"
    with pytest.raises(InvalidRequest, match="lone surrogate") as caught:
        ours.apply_chat_template([{"role": "user", "content": text}])
    assert caught.value.field == "messages"


def test_model_without_template_says_what_to_do(tmp_path: Path) -> None:
    """A base model gives a hint, and takes a template of the caller's."""
    ours = Tokenizer.from_directory(save(tmp_path, chat_template=None))
    assert not ours.has_chat_template
    with pytest.raises(InvalidRequest, match=r"no chat template.*Instruct") as caught:
        ours.apply_chat_template(MESSAGES)
    assert caught.value.field == "chat_template"
    text = ours.render_chat_template(
        MESSAGES, chat_template="{{ messages[0].content }}!"
    )
    assert text == "Hello world!"


def test_named_templates_are_chosen(tmp_path: Path) -> None:
    """The default one, the one for tools, or the one that is named."""
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with {{ tools[0].name }}"},
        {"name": "rag", "template": "rag"},
    ]
    ours = Tokenizer.from_directory(save(tmp_path, chat_template=named))
    assert ours.has_chat_template
    assert ours.render_chat_template(MESSAGES) == "plain"
    assert ours.render_chat_template(MESSAGES, tools=[{"name": "x"}]) == "with x"
    assert ours.render_chat_template(MESSAGES, chat_template="rag") == "rag"


def test_models_without_a_default_template_name_the_others(tmp_path: Path) -> None:
    """The error lists what can be chosen."""
    named = [{"name": "rag", "template": "rag"}]
    ours = Tokenizer.from_directory(save(tmp_path, chat_template=named))
    with pytest.raises(InvalidRequest, match="it has rag"):
        ours.apply_chat_template(MESSAGES)


def test_a_sentencepiece_model_alone_is_enough(tmp_path: Path) -> None:
    """Older checkpoints have no tokenizer.json; the ids are sentencepiece's own."""
    text = "the quick brown fox"
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text, "jumps over the lazy dog"] * 50),
        model_writer=model,
        model_type="bpe",
        vocab_size=60,
        minloglevel=2,
    )
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    settings = {"tokenizer_class": "LlamaTokenizer", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours = Tokenizer.from_directory(tmp_path)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = ours.encode(text, add_special_tokens=False)
    assert ids == theirs.encode(text)
    assert ours.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize(
    "own", [None, "the model's", [{"name": "tool_use", "template": "for tools"}]]
)
def test_an_engines_template_replaces_the_models(tmp_path: Path, own: object) -> None:
    """All of them, also where it has none; a caller's own still wins."""
    ours = Tokenizer.from_directory(
        save(tmp_path, chat_template=own), chat_template="{{ messages[0].content }}!"
    )
    assert ours.has_chat_template
    assert ours.apply_chat_template(MESSAGES) == ours.encode("Hello world!")
    assert ours.render_chat_template(MESSAGES, tools=[]) == "Hello world!"
    assert ours.render_chat_template(MESSAGES, chat_template="mine") == "mine"


@pytest.mark.parametrize("template", ["{% if %}", "{{ messages", "{% nonsense %}"])
def test_an_engines_template_that_does_not_compile_is_refused(
    tmp_path: Path, template: str
) -> None:
    """At once, naming the option, not at the first chat."""
    with pytest.raises(ConfigError, match="chat_template is no valid Jinja"):
        Tokenizer.from_directory(save(tmp_path), chat_template=template)


@pytest.mark.parametrize("content", [None, "{", '{"model": 5}'])
def test_directory_without_a_tokenizer_is_an_error(
    tmp_path: Path, content: str | None
) -> None:
    """Missing or broken files are the checkpoint's fault."""
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match="no tokenizer that can be loaded"):
        Tokenizer.from_directory(tmp_path)
    with pytest.raises(CheckpointError, match="is no directory"):
        Tokenizer.from_directory(tmp_path / "gone")


def test_bos_and_eos_ids(tmp_path: Path) -> None:
    """They come from the files; a bare backend has none."""
    ours = Tokenizer.from_directory(save(tmp_path))
    assert ours.bos_token_id == 1
    assert ours.eos_token_ids == {2}
    bare = Tokenizer(Backend(models.BPE(vocab={"a": 0}, merges=[])))
    assert bare.bos_token_id is None
    assert bare.eos_token_ids == frozenset()


def test_a_tokenizer_that_panics_is_refused_at_load(tmp_path: Path) -> None:
    """Its post-processor names a token that it lacks: the library panics, always."""
    path = save(tmp_path) / "tokenizer.json"
    content = json.loads(path.read_text())
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<gone>", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    }
    path.write_text(json.dumps(content))
    with pytest.raises(
        CheckpointError, match=r"tokenizer\.json: .*tokenizer contradicts itself"
    ):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("name", ["PanicException", "Exception"])
def test_a_failure_of_the_library_is_an_error(name: str) -> None:
    """Never its BaseException, which would end the thread it meets."""
    fault = Exception if name == "Exception" else type(name, (BaseException,), {})

    class Failing:
        def no_padding(self) -> None: ...

        def no_truncation(self) -> None: ...

        def encode(self, *_args: object, **_options: object) -> None:
            raise fault("no entry")

        decode = encode

    ours = Tokenizer(Failing())  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=f"contradicts itself: {name}: no entry"):
        ours.encode("x")
    with pytest.raises(CheckpointError, match=f"contradicts itself: {name}: no entry"):
        ours.decode([1], skip_special_tokens=True)


@pytest.mark.parametrize(
    "template", [5, True, [{"name": "default", "template": 5}], {"default": None}]
)
def test_a_chat_template_of_another_kind_is_named(
    tmp_path: Path, template: object
) -> None:
    """The error says which file and key hold what."""
    with pytest.raises(
        CheckpointError, match=r"tokenizer_config\.json: chat_template is "
    ):
        Tokenizer.from_directory(save(tmp_path, chat_template=template))
