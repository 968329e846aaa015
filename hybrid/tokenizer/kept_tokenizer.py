"""Keeps what transformers made of a tokenizer's files, for the next start.

<cache>/<directory's name>-<digest>/   tokenizer.json and tokenizer_config.json

What is kept says it all, so that transformers is not needed to load it. The digest is
of the files' sizes and times and of the libraries' versions; what it is no longer the
digest of is never read again and can be deleted.
"""

import hashlib
import json
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import structlog

from hybrid.backends.checkpoint.kept_directory import keep_directory

from .loaded_tokenizer import LoadedTokenizer
from .plain_tokenizer import load_plain_tokenizer

log = structlog.get_logger()

_WEIGHTS: Final = frozenset({".safetensors", ".bin", ".gguf", ".pt", ".pth"})
"""Files that say nothing of the tokenizer; a kept one outlives a change of theirs."""
_LIBRARIES: Final = ("transformers", "tokenizers")
_MAX_NAME_CHARACTERS: Final = 60


def load_or_keep(
    path: Path, cache_dir: Path | None, load: Callable[[Path], LoadedTokenizer]
) -> LoadedTokenizer:
    """Find what ``load`` made of ``path`` the last time, or load it now and keep it.

    A cache that cannot be written costs the next start its time and nothing else.

    Args:
        path: a directory with a tokenizer's files.
        cache_dir: holds what is kept; made if missing. ``None`` keeps nothing.
        load: takes seconds.

    Raises:
        CheckpointError: ``load``'s own.
    """
    if cache_dir is None:
        return load(path)
    target = cache_dir / f"{path.resolve().name[:_MAX_NAME_CHARACTERS]}-{_digest(path)}"
    kept = load_plain_tokenizer(target) if target.is_dir() else None
    if kept is not None:
        return kept
    loaded = load(path)
    if _says_it_all(loaded):
        try:
            keep_directory(target, lambda working: _write(loaded, working), _is_whole)
        except OSError as error:
            log.debug("tokenizer.not_kept", directory=str(target), reason=str(error))
    return loaded


def _digest(path: Path) -> str:
    files = sorted(
        file
        for file in (*path.iterdir(), *path.glob("*/*"))
        if file.is_file() and file.suffix not in _WEIGHTS
    )
    stamps = [
        (str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns)
        for file in files
    ]
    key = repr((str(path.resolve()), stamps, list(map(_version, _LIBRARIES))))
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _says_it_all(loaded: LoadedTokenizer) -> bool:
    """Whether its files will be read as what it is."""
    added = loaded.backend.get_added_tokens_decoder().values()
    special = {token.content for token in added if token.special}
    template = loaded.chat_template
    is_known = template is None or isinstance(template, str | dict)
    return is_known and special.issuperset(loaded.special_tokens.values())


def _write(loaded: LoadedTokenizer, directory: Path) -> None:
    loaded.backend.save(str(directory / "tokenizer.json"), pretty=False)
    template = loaded.chat_template
    if isinstance(template, dict):
        template = [{"name": n, "template": text} for n, text in template.items()]
    settings = {
        "tokenizer_class": "TokenizersBackend",
        **loaded.special_tokens,
        "chat_template": template,
    }
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _is_whole(directory: Path) -> bool:
    return load_plain_tokenizer(directory) is not None
