"""A model's tokenizer as one zip, for gateways that tokenize."""

import asyncio
import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybrid.scheduler import CheckpointError
from hybrid.wire.archive_limits import MAX_BYTES, MAX_FILES, MAX_UNPACKED_BYTES

if TYPE_CHECKING:
    # Text is an extra: without it the engine takes and gives token ids.
    from hybrid.tokenizer.tokenizer import Tokenizer

FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
)
PATTERNS: Final = ("*.model", "*.jinja", "*.tiktoken")
PIECE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Archive:
    """A zip and its fingerprint."""

    data: bytes
    sha256: str
    """Of ``data``, in hexadecimal."""

    def pieces(self) -> Iterator[tuple[bytes, str]]:
        """The zip in order; the fingerprint comes with the last piece, else ``""``."""
        for start in range(0, len(self.data), PIECE_BYTES):
            is_last = start + PIECE_BYTES >= len(self.data)
            yield (
                self.data[start : start + PIECE_BYTES],
                self.sha256 if is_last else "",
            )


class TokenizerArchive:
    """Built when it is first asked for, off the event loop, and kept."""

    def __init__(self, directory: Path, tokenizer: "Tokenizer") -> None:
        """Nothing is read yet.

        Args:
            directory: the model's; its files stay as they are while it is served.
            tokenizer: stands in for a ``tokenizer.json`` that the model lacks.
        """
        self._directory: Final = directory
        self._tokenizer: Final = tokenizer
        self._lock: Final = asyncio.Lock()
        self._archive: Archive | None = None

    async def get(self) -> Archive:
        """The archive.

        Raises:
            CheckpointError: it is larger than a gateway takes.
        """
        async with self._lock:
            if self._archive is None:
                self._archive = await asyncio.to_thread(self._build)
            return self._archive

    def _build(self) -> Archive:
        files = self._files()
        _check("files", len(files), MAX_FILES)
        _check("bytes unpacked", sum(map(len, files.values())), MAX_UNPACKED_BYTES)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                # Without a date of its own, so that equal files give equal archives.
                entry = zipfile.ZipInfo(name)
                archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
        data = buffer.getvalue()
        _check("bytes", len(data), MAX_BYTES)
        return Archive(data, hashlib.sha256(data).hexdigest())

    def _files(self) -> dict[str, bytes]:
        paths = [self._directory / name for name in FILES]
        for pattern in PATTERNS:
            paths += sorted(self._directory.glob(pattern))
        files = {path.name: path.read_bytes() for path in paths if path.is_file()}
        if "tokenizer.json" not in files:
            files["tokenizer.json"] = self._tokenizer.backend.to_str().encode()
        return files


def _check(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise CheckpointError(
            f"the tokenizer's archive has {count} {what}, gateways take {limit}"
        )
