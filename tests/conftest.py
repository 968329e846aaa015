"""Skips what this machine cannot run, and says why."""

import os
from importlib.util import find_spec

import pytest

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


_NEEDS = {"model": _reason_without_model, "gpu": _reason_without_gpu}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests whose marker names something that is not here."""
    for marker, find_reason in _NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = find_reason() if marked else None
        if reason is not None:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))
