"""Optional libraries: whatever their import raises becomes one refusal."""

from pathlib import Path

import pytest

from hybrid.backends.trtllm.optional_library import import_library
from hybrid.scheduler import UnsupportedFeature


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('MPI_Init failed')", "RuntimeError: MPI_Init failed"),
        ("raise OSError('libnvinfer.so.10')", "OSError: libnvinfer.so.10"),
        ("import no_such_module", "ModuleNotFoundError: No module named"),
    ],
)
def test_an_import_that_fails_is_refused_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    """Not only what Python raises: libraries with drivers behind them raise theirs."""
    (tmp_path / "broken_kernels.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnsupportedFeature, match=f"broken_kernels cannot .*{reason}"):
        import_library("broken_kernels")


def test_one_that_is_there_is_imported() -> None:
    """As by an import statement."""
    assert import_library("json.decoder").JSONDecoder
