"""Without transformers, a tokenizer is the one that transformers would have made."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from transformers.models.auto import tokenization_auto

from hybrid.scheduler.errors import CheckpointError
from hybrid.tokenizer.loaded_tokenizer import LoadedTokenizer
from hybrid.tokenizer.plain_tokenizer import REBUILT_MODEL_TYPES, load_plain_tokenizer
from hybrid.tokenizer.tokenizer import Tokenizer
from tests.backends.tiny_checkpoints import TORTURE, add_byte_level_tokenizer
from tests.backends.tokenizer_stand import write
from tests.hybrid.tokenizer_kinds import KINDS, add_ends, byte_level, save_tokenizer

TEXTS = [
    "",
    " ",
    "  two  spaces \t\n\r\n",
    TORTURE,
    "<s>spelled</s> <unk><s> out",
    "\ufeff\u200b\u0301e\u0301\u00e9\uac00\u1100\u1161\U0001f469\u200d\U0001f680\ufffd",
    "0123456789 1e10 \u0661\u0662\u0663",
    "wide \u3000 \u00a0 spaces",
    "the quick brown fox " * 5000,
    "x" * 20000,
]


def reference(folder: Path) -> transformers.PreTrainedTokenizerBase:
    """Load what users of transformers have."""
    return transformers.AutoTokenizer.from_pretrained(str(folder))


def plain(folder: Path) -> LoadedTokenizer:
    """Load without transformers, which must be possible."""
    loaded = load_plain_tokenizer(folder)
    assert loaded is not None
    return loaded


def check_same(ours: LoadedTokenizer, folder: Path) -> None:
    """Assert that nothing tells ``ours`` from what transformers makes of ``folder``."""
    theirs = reference(folder)
    assert ours.special_tokens == theirs.special_tokens_map
    assert ours.chat_template == theirs.chat_template
    assert content(ours.backend) == content(theirs.backend_tokenizer)
    for text in TEXTS:
        for adds in (True, False):
            ids = ours.backend.encode(text, add_special_tokens=adds).ids
            assert ids == theirs(text, add_special_tokens=adds)["input_ids"]
            for skips in (True, False):
                decoded = ours.backend.decode(ids, skip_special_tokens=skips)
                assert decoded == theirs.backend_tokenizer.decode(
                    ids, skip_special_tokens=skips
                )


def content(backend: Backend) -> dict[str, Any]:
    """All that ``backend`` is, but a post-processor that adds nothing."""
    state: dict[str, Any] = json.loads(backend.to_str())
    if not backend.num_special_tokens_to_add(is_pair=False):
        state.pop("post_processor")
    return state


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("eos", [True, False])
def test_every_kind_is_what_transformers_makes(
    tmp_path: Path, kind: str, bos: bool, eos: bool
) -> None:
    """Whatever splits and merges the text, and whatever is added around it."""
    folder = save_tokenizer(tmp_path, add_ends(KINDS[kind](), bos=bos, eos=eos))
    check_same(plain(folder), folder)


@pytest.mark.parametrize("kind", KINDS)
def test_no_post_processor_adds_nothing(tmp_path: Path, kind: str) -> None:
    """One put in by transformers does nothing."""
    folder = save_tokenizer(
        tmp_path, KINDS[kind](), tokenizer_class="TokenizersBackend"
    )
    check_same(plain(folder), folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"add_bos_token": True, "add_eos_token": True, "add_prefix_space": True},
        {"clean_up_tokenization_spaces": True, "padding_side": "left"},
        {"pad_token": "</s>", "cls_token": "<s>", "sep_token": None},
        {"bos_token": None, "eos_token": None, "unk_token": None},
        {"eos_token": "the"},  # an ordinary token, made special
        {"extra_special_tokens": ["<s>", "</s>"]},
        {"additional_special_tokens": ["<unk>"]},
        {"chat_template": "{{ bos_token }}"},
        {"chat_template": [{"name": "default", "template": "{{ messages }}"}]},
        {"added_tokens_decoder": {"1": {"content": "<s>", "special": True}}},
    ],
    ids=str,
)
def test_settings_are_read_as_transformers_reads_them(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    """What changes nothing, what names tokens, and templates."""
    folder = save_tokenizer(tmp_path, byte_level(), **settings)
    check_same(plain(folder), folder)


def test_tokens_added_after_training_are_kept(tmp_path: Path) -> None:
    """Special or not, stripping spaces or not, within words or not."""
    backend = byte_level()
    backend.add_tokens([AddedToken("<tool>", lstrip=True), AddedToken("fox")])
    backend.add_special_tokens([AddedToken("<|end|>", rstrip=True)])
    added = {
        str(index): {"special": token.special, **fields(token)}
        for index, token in backend.get_added_tokens_decoder().items()
    }
    folder = save_tokenizer(
        tmp_path, backend, added_tokens_decoder=added, eos_token="<|end|>"
    )
    check_same(plain(folder), folder)
    ids = plain(folder).backend.encode("a <tool>foxes<|end|>  b").ids
    assert ids == reference(folder)("a <tool>foxes<|end|>  b")["input_ids"]


def fields(token: AddedToken) -> dict[str, object]:
    """The fields of ``token``, as tokenizer_config.json spells them out."""
    names = ("content", "lstrip", "rstrip", "normalized", "single_word")
    return {name: getattr(token, name) for name in names}


def test_padding_names_a_token(tmp_path: Path) -> None:
    """Templates see the ``pad_token`` that the file pads with, as in transformers."""
    backend = byte_level()
    backend.enable_padding(pad_id=2, pad_token="</s>")
    folder = save_tokenizer(tmp_path, backend)
    assert plain(folder).special_tokens["pad_token"] == "</s>"
    assert reference(folder).pad_token == "</s>"


def test_a_template_in_a_file_goes_first(tmp_path: Path) -> None:
    """As newer checkpoints keep it."""
    folder = save_tokenizer(tmp_path, byte_level(), chat_template="of the settings")
    (folder / "chat_template.jinja").write_text("of the file: \u00e9\n")
    assert plain(folder).chat_template == "of the file: \u00e9\n"
    check_same(plain(folder), folder)


def test_a_converted_gguf_needs_no_transformers(tmp_path: Path) -> None:
    """Its tokenizer is written for this."""
    folder = write(tmp_path, add_byte_level_tokenizer)
    check_same(plain(folder), folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer_class": None},
        {"tokenizer_class": "GPT2Tokenizer"},
        {"tokenizer_class": "PreTrainedTokenizer"},
        {"auto_map": {"AutoTokenizer": [None, "mine.Mine"]}},
        {"split_special_tokens": True},
        {"image_token": "<s>"},
        {"pad_token": "<new>"},
        {"extra_special_tokens": ["<new>"]},
        {"extra_special_tokens": {"image_token": "<s>"}},
        {"added_tokens_decoder": {"900": {"content": "<new>", "special": True}}},
        {"added_tokens_decoder": {"1": {"content": "<s>", "lstrip": True}}},
        {"chat_template": [{"text": "no name"}]},
        {"fast_tokenizer_files": ["tokenizer.json"]},
    ],
    ids=str,
)
def test_what_is_not_plain_is_left_to_transformers(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    """Classes of their own, tokens to be added, keys that nobody here knows."""
    assert (
        load_plain_tokenizer(save_tokenizer(tmp_path, byte_level(), **settings)) is None
    )


@pytest.mark.parametrize(
    "name", ["special_tokens_map.json", "added_tokens.json", "tekken.json"]
)
def test_files_of_other_versions_are_left_to_transformers(
    tmp_path: Path, name: str
) -> None:
    """They may add tokens, or replace the tokenizer."""
    folder = save_tokenizer(tmp_path, byte_level())
    (folder / name).write_text("{}")
    assert load_plain_tokenizer(folder) is None


@pytest.mark.parametrize("model_type", sorted(REBUILT_MODEL_TYPES))
def test_models_with_a_tokenizer_of_their_own_are_left_to_transformers(
    tmp_path: Path, model_type: str
) -> None:
    """Whatever class their files name."""
    folder = save_tokenizer(tmp_path, byte_level())
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert load_plain_tokenizer(folder) is None


def test_transformers_rebuilds_no_other_tokenizers() -> None:
    """Its own tables say which; a newer version may know more."""
    as_it_stands = {
        "TokenizersBackend",
        "PythonBackend",
        "PreTrainedTokenizer",
        "MistralCommonBackend",
    }
    names = tokenization_auto.TOKENIZER_MAPPING_NAMES
    rebuilt = {
        model_type
        for model_type in tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
        if str(names[model_type]).removesuffix("Fast") not in as_it_stands
    }
    assert rebuilt <= REBUILT_MODEL_TYPES


@pytest.mark.parametrize(
    "model_type", ["llama", "mistral", "qwen3", "gpt2", "nonsense"]
)
def test_other_models_take_the_file_as_it_stands(
    tmp_path: Path, model_type: str
) -> None:
    """Also those whose usual class is another than the files name."""
    folder = save_tokenizer(tmp_path, add_ends(byte_level(), bos=True, eos=False))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    check_same(plain(folder), folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_broken_files_are_told_of(tmp_path: Path, name: str) -> None:
    """By who can tell what is wrong."""
    folder = save_tokenizer(tmp_path, byte_level())
    (folder / name).write_text("{")
    assert load_plain_tokenizer(folder) is None
    with pytest.raises(CheckpointError, match="no tokenizer that can be loaded"):
        Tokenizer.from_directory(folder)
