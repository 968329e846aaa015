"""A server's tokenizer, from the zip that it sends.

Nothing that a server sends is trusted: neither its size, nor its names, nor its bytes.
"""

import hashlib
import io
import shutil
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from hybrid.scheduler import CheckpointError, ConfigError
from hybrid.scheduler.shown_value import shown
from hybrid.wire.archive_limits import MAX_BYTES, MAX_FILES, MAX_UNPACKED_BYTES

from .rpc_failed import RpcFailed

if TYPE_CHECKING:
    # Text is an extra: without it ids go in and out.
    from hybrid.tokenizer.tokenizer import Tokenizer

_NO_TOKENIZER: Final = ("FAILED_PRECONDITION", "UNIMPLEMENTED")
"""Statuses by which a server says that it has none to give."""
_BROKEN: Final = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,  # a way of packing that this Python lacks
    RuntimeError,  # a password is wanted
    UnicodeDecodeError,
    OSError,  # names that clash, or that no file can have
)
PIECE_BYTES: Final = 1 << 20


class TokenizerDownload:
    """Takes the pieces in, and makes a tokenizer of them."""

    def __init__(self) -> None:
        self._data: Final = bytearray()
        self._sha256 = ""

    def take(self, chunk: Any) -> None:
        """Append a ``GetTokenizerChunk``.

        Raises:
            CheckpointError: it is larger than any tokenizer.
        """
        self._data.extend(chunk.data)
        self._sha256 = chunk.sha256
        _check("bytes", len(self._data), MAX_BYTES)

    def load(self) -> "Tokenizer":
        """Check, unpack and load; takes seconds. Nothing is left on the disk.

        Raises:
            CheckpointError: the archive is not what was sent, not what it should be, or
                holds no tokenizer.
            ConfigError: a library that text needs is not installed.
        """
        if hashlib.sha256(self._data).hexdigest() != self._sha256:
            raise _fault("its SHA-256 is not the one that the server names")
        try:
            from hybrid.tokenizer.tokenizer import Tokenizer  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ConfigError(
                f"text needs {error.name}: pip install 'hybrid-llm-engine[torch]', or "
                "give and take token ids (detokenize=False)"
            ) from error
        # Private: nobody else can put a file among ours.
        with TemporaryDirectory(prefix="hybrid-tokenizer-") as folder:
            try:
                self._unpack(Path(folder))
            except _BROKEN as error:
                raise _fault(f"it cannot be unpacked: {error}") from error
            return Tokenizer.from_directory(Path(folder))

    def _unpack(self, folder: Path) -> None:
        with zipfile.ZipFile(io.BytesIO(self._data)) as archive:
            entries = archive.infolist()
            _check("files", len(entries), MAX_FILES)
            _check(
                "bytes unpacked", sum(e.file_size for e in entries), MAX_UNPACKED_BYTES
            )
            for entry in entries:
                _check_entry(entry)
            for entry in entries:
                if entry.is_dir():
                    continue
                path = folder / entry.filename
                path.parent.mkdir(parents=True, exist_ok=True)
                # Piece by piece, to the size that was checked: whatever more is packed
                # is never unpacked.
                with archive.open(entry) as packed, path.open("xb") as file:
                    shutil.copyfileobj(packed, file, PIECE_BYTES)


def says_none(error: BaseException) -> bool:
    """Whether a server has no tokenizer to give; otherwise asking it failed."""
    failure = error if isinstance(error, RpcFailed) else error.__cause__
    return isinstance(failure, RpcFailed) and failure.code in _NO_TOKENIZER


def _check_entry(entry: zipfile.ZipInfo) -> None:
    """Refuse a name that leads out of the folder, and what is no plain file."""
    path = PurePosixPath(entry.filename)
    is_outside = path.is_absolute() or ".." in path.parts
    if is_outside or any(character in entry.filename for character in "\\:"):
        raise _fault(f"it has an entry {shown(entry.filename)}")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _fault(f"its entry {shown(entry.filename)} is no plain file")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # Of the others Python unpacks as much as there is at once.
        raise _fault(f"its entry {shown(entry.filename)} is packed in an odd way")


def _check(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise _fault(f"it has {count} {what}, at most {limit} are taken")


def _fault(what: str) -> CheckpointError:
    return CheckpointError(f"the server's tokenizer archive is refused: {what}")
