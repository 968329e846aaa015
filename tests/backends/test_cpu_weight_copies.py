"""Whether four-bit weights get copies in eight bits."""

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hybrid.backends.cpu import weight_copies
from hybrid.backends.cpu.abi import Format
from hybrid.testing import write_tiny_model
from tests.backends.cpu_stand import load_cpu, logits_in_company

NUM_TOKENS = 90
IDS = [7 * i % 300 for i in range(NUM_TOKENS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose products have tails."""
    return write_tiny_model(tmp_path_factory.mktemp("copies"), "llama")


def _logits(folder: Path, asked: str, quantization: str = "int4") -> np.ndarray:
    loaded = load_cpu(folder, quantization=quantization, batch_invariant=asked)
    with closing(loaded.executor):
        return np.asarray(logits_in_company(loaded, IDS, [NUM_TOKENS]))


def test_copies_are_near_what_they_are_of(folder: Path) -> None:
    """Near, but not the same: else nobody would have used them."""
    exact, by_copies = _logits(folder, "yes"), _logits(folder, "no")
    error = np.linalg.norm(by_copies - exact) / np.linalg.norm(exact)
    assert 0 < error < 0.05


def test_other_weights_have_none(folder: Path) -> None:
    """Nothing is decided for them."""
    exact, by_copies = (_logits(folder, asked, "int8") for asked in ("yes", "no"))
    assert exact.tobytes() == by_copies.tobytes()


@pytest.mark.parametrize(
    ("variant", "free", "invariant"),
    [
        ("avx512_bf16", 4 * 64 * 96, False),
        ("avx512", 4 * 64 * 96 - 1, True),
        ("avx2", 1 << 40, True),
    ],
)
def test_auto_makes_them_where_they_are_faster_and_memory_is_no_concern(
    monkeypatch: pytest.MonkeyPatch, variant: str, free: int, invariant: bool
) -> None:
    """Elsewhere steps take the weights as they are."""
    weights = [
        SimpleNamespace(format=Format.INT4, rows=64, columns=96),
        SimpleNamespace(format=Format.INT8, rows=1 << 20, columns=1 << 20),
    ]
    engine: Any = SimpleNamespace(weights=weights)
    monkeypatch.setattr(weight_copies, "free_host_memory_bytes", lambda: free)
    assert weight_copies.is_batch_invariant(engine, "auto", variant) is invariant
    assert weight_copies.is_batch_invariant(engine, "yes", variant)
    assert not weight_copies.is_batch_invariant(engine, "no", variant)
