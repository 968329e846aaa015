"""Whether four-bit weights get copies in eight bits."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from hybrid.backends.cpu import weight_copies
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


@pytest.mark.parametrize(("free", "has_copies"), [(1, False), (1 << 40, True)])
def test_auto_makes_them_where_memory_is_no_concern(
    folder: Path, monkeypatch: pytest.MonkeyPatch, free: int, has_copies: bool
) -> None:
    """Elsewhere steps take the weights as they are."""
    exact = _logits(folder, "yes")
    monkeypatch.setattr(weight_copies, "free_host_memory_bytes", lambda: free)
    found = _logits(folder, "auto")
    assert (found.tobytes() != exact.tobytes()) == has_copies
