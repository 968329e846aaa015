"""Skips what this machine cannot run, and says why; leaves the user's cache alone."""

import os
import shutil
import signal
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from hybrid.models.cache import cache_dir
from hybrid.models.catalog import KNOWN_MODELS
from hybrid.models.model_pull import find_local

# Before anything imports torch: tests share their cores, and OpenMP's threads would
# spin on them (see hybrid.cli.entry).
os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def _reason_without_model() -> str | None:
    model = KNOWN_MODELS[0]
    if find_local(model) is not None:
        return None
    return f"{model.name} is not in the cache (hybrid pull {model.name} fetches it)"


def _reason_without_gpu() -> str | None:
    if find_spec("torch") is None:
        return "torch is not installed"
    import torch  # noqa: PLC0415 - only where a test asks for a device

    return None if torch.cuda.is_available() else "no CUDA device"


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in what a script starts in the background: tests of Ctrl-C, and the processes
    # that they start, want it as a terminal has it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_NEEDS = {"model": _reason_without_model, "gpu": _reason_without_gpu}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests whose marker names something that is not here."""
    for marker, find_reason in _NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = find_reason() if marked else None
        if reason is not None:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Read models from the user's cache, and convert them somewhere else."""
    folder = tmp_path_factory.mktemp("cache")
    models = cache_dir() / "models"
    if models.is_dir():
        (folder / "models").symlink_to(models.resolve())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYBRID_CACHE", str(folder))
        yield
    # Half a gigabyte a dtype, which pytest would keep for three runs.
    shutil.rmtree(folder / "converted", ignore_errors=True)
