"""Writes a GGUF's tokenizer, chat template and end ids as Hugging Face files."""

import json
from pathlib import Path
from typing import Final

from .gguf_header import GGUFHeader
from .gguf_tokenizer import build_gguf_tokenizer
from .gguf_vocabulary import GGUFVocabulary

_CHAT_TEMPLATE: Final = "tokenizer.chat_template"
_NAMES: Final = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
}


def write_gguf_tokenizer(header: GGUFHeader, directory: Path) -> int:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json.

    Returns:
        The number of tokens.

    Raises:
        CheckpointError: the file's tokenizer is incomplete or of an unknown kind.
    """
    vocabulary = GGUFVocabulary.from_header(header)
    tokenizer = build_gguf_tokenizer(vocabulary)
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    # Whether BOS and EOS are added stands in tokenizer.json's post-processor, once.
    config: dict[str, object] = {
        "tokenizer_class": "TokenizersBackend",
        "clean_up_tokenization_spaces": False,
    }
    for ours, theirs in _NAMES.items():
        if (token := vocabulary.special_token(theirs)) is not None:
            config[ours] = token
    if (template := _chat_template(header)) is not None:
        config["chat_template"] = template
    _write_json(directory / "tokenizer_config.json", config)
    generation: dict[str, object] = {}
    if ends := vocabulary.eos_token_ids():
        generation["eos_token_id"] = list(ends)
    for ours, theirs in (("bos_token_id", "bos"), ("pad_token_id", "padding")):
        if (index := vocabulary.special_id(theirs)) is not None:
            generation[ours] = index
    _write_json(directory / "generation_config.json", generation)
    return len(vocabulary.tokens)


def _chat_template(header: GGUFHeader) -> str | list[dict[str, str]] | None:
    default = header.text(_CHAT_TEMPLATE)
    named = {
        key.removeprefix(_CHAT_TEMPLATE + "."): template
        for key, template in header.metadata.items()
        if key.startswith(_CHAT_TEMPLATE + ".") and isinstance(template, str)
    }
    if not named:
        return default
    if default is not None:
        named["default"] = default
    return [{"name": name, "template": template} for name, template in named.items()]


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
