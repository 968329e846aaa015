"""Loads a tokenizer whose files say it all, without transformers.

transformers takes seconds to import. Where it would take tokenizer.json as it stands,
the ``tokenizers`` library alone gives the same ids. Whatever else the files ask for (a
class that builds a tokenizer of its own, files of older versions, a key that is not
known here) is left to transformers: this module declines rather than guess.

Source: transformers 5.24, ``models/auto/tokenization_auto.py``,
``tokenization_utils_base.py``, ``tokenization_utils_tokenizers.py``.
"""

from pathlib import Path
from typing import Any, Final

import tokenizers

from hybrid.backends.checkpoint.json_file import read_json_object

from .loaded_tokenizer import LoadedTokenizer

_PLAIN_CLASSES: Final = frozenset({"TokenizersBackend", "PreTrainedTokenizerFast"})
"""Classes that take tokenizer.json as it stands."""
REBUILT_MODEL_TYPES: Final = frozenset(
    {
        "hyperclovax_vision_v2",
        "qwen2",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen4_exp",
        "siglip2",
    }
)
"""Models for which transformers builds a tokenizer of another class than they name."""
_NAMED_TOKENS: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_LISTS_OF_TOKENS: Final = ("extra_special_tokens", "additional_special_tokens")
_KNOWN_KEYS: Final = frozenset(
    {
        *_NAMED_TOKENS,
        *_LISTS_OF_TOKENS,
        "added_tokens_decoder",
        "chat_template",
        "tokenizer_class",
        # Of no consequence to ids where there is a tokenizer.json, as long as texts
        # are neither padded nor cut, nor tidied after decoding.
        "add_bos_token",
        "add_eos_token",
        "add_prefix_space",
        "backend",
        "clean_up_tokenization_spaces",
        "errors",
        "is_local",
        "legacy",
        "local_files_only",
        "max_length",
        "model_input_names",
        "model_max_length",
        "name_or_path",
        "pad_to_multiple_of",
        "pad_token_type_id",
        "padding_side",
        "processor_class",
        "stride",
        "truncation_side",
        "truncation_strategy",
        "use_default_system_prompt",
    }
)
_OTHER_SOURCES: Final = ("tekken.json", "additional_chat_templates")
_OLDER_SOURCES: Final = ("special_tokens_map.json", "added_tokens.json")
"""Read only where tokenizer_config.json has no ``added_tokens_decoder``."""


def load_plain_tokenizer(path: Path) -> LoadedTokenizer | None:
    """Load the tokenizer in ``path`` as transformers would, if that is plain to see.

    Returns:
        ``None`` where it is not, or where the files are at fault: transformers is to
        load it, or to say what is wrong.
    """
    try:
        settings = read_json_object(path / "tokenizer_config.json") or {}
        config = read_json_object(path / "config.json") or {}
        if not _is_plain(path, settings, config):
            return None
        backend = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
        if not _has_all_tokens(backend, settings):
            return None
        named = _named_tokens(backend, settings)
        if named is None:
            return None
        return LoadedTokenizer(backend, named, _chat_template(path, settings))
    # Files may hold anything, and the library raises plain ``Exception`` at them.
    except Exception:  # noqa: BLE001 - transformers is asked next, and tells of it
        return None


def _is_plain(path: Path, settings: dict[str, Any], config: dict[str, Any]) -> bool:
    """Whether transformers would read tokenizer.json and these settings, no more."""
    others: tuple[str, ...] = _OTHER_SOURCES
    if "added_tokens_decoder" not in settings:
        others += _OLDER_SOURCES
    return (
        settings.get("tokenizer_class") in _PLAIN_CLASSES
        and settings.keys() <= _KNOWN_KEYS
        and config.get("model_type") not in REBUILT_MODEL_TYPES
        and "model_name" not in config
        and not any((path / name).exists() for name in others)
    )


def _has_all_tokens(backend: tokenizers.Tokenizer, settings: dict[str, Any]) -> bool:
    """Whether tokenizer.json has every added token that the settings list."""
    added = backend.get_added_tokens_decoder()
    for index, token in (settings.get("added_tokens_decoder") or {}).items():
        if repr(added.get(int(index))) != repr(tokenizers.AddedToken(**token)):
            return False
    contents = {token.content for token in added.values()}
    lists = [settings.get(key) or [] for key in _LISTS_OF_TOKENS]
    return all(
        isinstance(items, list) and contents.issuperset(items) for items in lists
    )


def _named_tokens(
    backend: tokenizers.Tokenizer, settings: dict[str, Any]
) -> dict[str, str] | None:
    """The tokens that the settings name, made special ones in ``backend``.

    Returns:
        ``None`` where one is no token of the vocabulary, or an added one that is not
        special: what becomes of it differs between versions of transformers.
    """
    added = backend.get_added_tokens_decoder().values()
    special = {token.content: token.special for token in added}
    if backend.padding is not None:
        settings = {"pad_token": backend.padding["pad_token"], **settings}
    named = {}
    for name in _NAMED_TOKENS:
        if (token := settings.get(name)) is None:
            continue
        content = token["content"] if isinstance(token, dict) else token
        if content not in special:
            if isinstance(token, dict) or backend.token_to_id(content) is None:
                return None
            backend.add_tokens([tokenizers.AddedToken(content, special=True)])
        elif not special[content]:
            return None
        named[name] = content
    return named


def _chat_template(path: Path, settings: dict[str, Any]) -> object:
    """The template; a file of its own goes before the settings."""
    file = path / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}
    return template
