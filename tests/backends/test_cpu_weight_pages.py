"""Where weights lie while an engine runs."""

from pathlib import Path

import numpy as np
import pytest

from hybrid.backends.cpu import weight_pages
from hybrid.backends.cpu.weight_pages import copy_to_huge_pages, reader_of


@pytest.mark.parametrize("num_bytes", [1, 4095, 3 << 20])
def test_a_copy_is_the_file(tmp_path: Path, num_bytes: int) -> None:
    """Byte by byte, whatever becomes of the file, and nobody writes to it."""
    file = tmp_path / "weights"
    wanted = np.random.default_rng(num_bytes).bytes(num_bytes)
    file.write_bytes(wanted)
    copied = copy_to_huge_pages(file)
    file.write_bytes(b"")
    assert copied.tobytes() == wanted
    assert copied.ctypes.data % 64 == 0
    with pytest.raises(ValueError, match="read-only"):
        copied[0] = 1


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """As the system names it."""
    with pytest.raises(FileNotFoundError, match="none"):
        copy_to_huge_pages(tmp_path / "none")


@pytest.mark.parametrize(
    ("pages", "setting", "copies"),
    [
        ("auto", "always [madvise] never", True),
        ("auto", "[always] madvise never", True),
        ("auto", "always madvise [never]", False),
        ("auto", None, False),
        ("huge", "always madvise [never]", True),
        ("mapped", "[always] madvise never", False),
    ],
)
def test_weights_are_copied_where_that_gives_huge_pages(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pages: str,
    setting: str | None,
    copies: bool,
) -> None:
    """Unless it was said where they shall lie."""
    file = tmp_path / "enabled"
    if setting is not None:
        file.write_text(setting, "ascii")
    monkeypatch.setattr(weight_pages, "_SETTING", file)
    assert (reader_of(pages) is not None) == copies
