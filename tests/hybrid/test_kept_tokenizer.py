"""What transformers made of a tokenizer is kept, as it was, until its files change."""

import json
import os
import sys
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer as Backend

from hybrid.scheduler.errors import ConfigError
from hybrid.tokenizer import kept_tokenizer
from hybrid.tokenizer.auto_tokenizer import load_auto_tokenizer
from hybrid.tokenizer.kept_tokenizer import load_or_keep
from hybrid.tokenizer.loaded_tokenizer import LoadedTokenizer
from hybrid.tokenizer.plain_tokenizer import load_plain_tokenizer
from hybrid.tokenizer.tokenizer import Tokenizer
from tests.backends.tiny_checkpoints import TORTURE
from tests.hybrid.tokenizer_kinds import (
    add_ends,
    byte_level,
    save_tokenizer,
    sentencepiece,
)

CLASSES = {
    "GPT2Tokenizer": byte_level,
    "Qwen2Tokenizer": byte_level,
    "LlamaTokenizer": sentencepiece,
}


def refuse(path: Path) -> LoadedTokenizer:
    """Stand for transformers where it must not be asked."""
    raise AssertionError(f"{path} was loaded anew")


def save(folder: Path, class_name: str = "GPT2Tokenizer", **settings: object) -> Path:
    """Write a tokenizer of a class that builds one of its own."""
    folder.mkdir(exist_ok=True)
    backend = add_ends(CLASSES[class_name](), bos=True, eos=False)
    save_tokenizer(folder, backend, tokenizer_class=class_name, **settings)
    assert load_plain_tokenizer(folder) is None
    return folder


@pytest.mark.parametrize("class_name", CLASSES)
@pytest.mark.parametrize(
    "template", [None, "{{ bos_token }}", [{"name": "rag", "template": "rag"}]]
)
def test_what_is_kept_is_what_was_loaded(
    tmp_path: Path, class_name: str, template: object
) -> None:
    """In every byte of it, and so are its special tokens and templates."""
    folder = save(tmp_path / "model", class_name, chat_template=template)
    first = load_or_keep(folder, tmp_path / "cache", load_auto_tokenizer)
    again = load_or_keep(folder, tmp_path / "cache", refuse)
    assert again.backend.to_str() == first.backend.to_str()
    assert again.special_tokens == first.special_tokens
    assert again.chat_template == first.chat_template
    ids = transformers.AutoTokenizer.from_pretrained(str(folder))(TORTURE)["input_ids"]
    assert again.backend.encode(TORTURE).ids == ids


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
)
def test_a_changed_file_is_loaded_anew(tmp_path: Path, name: str) -> None:
    """Also one that was not there before; weights do not count."""
    folder = save(tmp_path / "model")
    load_or_keep(folder, tmp_path / "cache", load_auto_tokenizer)
    (folder / "model.safetensors").write_bytes(b"weights")
    load_or_keep(folder, tmp_path / "cache", refuse)
    (folder / name).touch()
    os.utime(folder / name, ns=(1, 1))
    with pytest.raises(AssertionError, match="was loaded anew"):
        load_or_keep(folder, tmp_path / "cache", refuse)


def test_another_version_of_a_library_loads_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may make something else of the same files."""
    folder = save(tmp_path / "model")
    load_or_keep(folder, tmp_path / "cache", load_auto_tokenizer)
    monkeypatch.setattr(kept_tokenizer, "version", lambda _: "99.0")
    with pytest.raises(AssertionError, match="was loaded anew"):
        load_or_keep(folder, tmp_path / "cache", refuse)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_broken_kept_one_is_made_anew(tmp_path: Path, name: str) -> None:
    """As a machine that lost power leaves it; the next start finds a whole one."""
    folder, cache = save(tmp_path / "model"), tmp_path / "cache"
    load_or_keep(folder, cache, load_auto_tokenizer)
    (kept,) = cache.iterdir()
    (kept / name).write_bytes(b"")
    first = load_or_keep(folder, cache, load_auto_tokenizer)
    again = load_or_keep(folder, cache, refuse)
    assert again.backend.to_str() == first.backend.to_str()
    assert list(cache.iterdir()) == [kept]


def test_a_cache_that_cannot_be_written_costs_time_alone(tmp_path: Path) -> None:
    """The tokenizer is loaded, each time."""
    folder = save(tmp_path / "model")
    (tmp_path / "cache").write_text("a file")
    for _ in range(2):
        loaded = load_or_keep(folder, tmp_path / "cache", load_auto_tokenizer)
        assert loaded.backend.encode("Hello").ids


def test_what_files_cannot_say_is_not_kept(tmp_path: Path) -> None:
    """A named token that is no special one would become one."""
    folder, cache = save(tmp_path / "model"), tmp_path / "cache"
    made = LoadedTokenizer(byte_level(), {"eos_token": "the"}, None)
    for _ in range(2):
        assert load_or_keep(folder, cache, lambda _: made) is made
    assert not cache.exists()


def test_the_engines_cache_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time, transformers need not even be there: its errors show it."""
    folder, cache = save(tmp_path / "model"), tmp_path / "cache"
    first = Tokenizer.from_directory(folder, cache_dir=cache)
    monkeypatch.setitem(sys.modules, "transformers", None)
    again = Tokenizer.from_directory(folder, cache_dir=cache)
    assert again.encode(TORTURE) == first.encode(TORTURE)
    assert again.eos_token_ids == first.eos_token_ids
    with pytest.raises(ConfigError, match="needs transformers: pip install"):
        Tokenizer.from_directory(folder)


def test_kept_files_are_plain(tmp_path: Path) -> None:
    """They are read as any other directory, by those who look into it."""
    folder, cache = save(tmp_path / "model"), tmp_path / "cache"
    load_or_keep(folder, cache, load_auto_tokenizer)
    (kept,) = cache.iterdir()
    assert kept.name.startswith("model-")
    settings = json.loads((kept / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "TokenizersBackend"
    assert Backend.from_file(str(kept / "tokenizer.json")).get_vocab_size()
