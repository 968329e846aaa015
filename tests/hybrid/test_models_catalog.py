"""Names of models and where they are kept."""

from pathlib import Path

import pytest

from hybrid.models import KNOWN_MODELS, cache_dir, converted_dir
from hybrid.models.cache import model_dir
from hybrid.models.catalog import find_known_model, get_known_model, known_name_hint
from hybrid.scheduler.errors import ModelNotFound


@pytest.mark.parametrize("model", KNOWN_MODELS, ids=lambda model: model.name)
def test_entries_pin_one_file_exactly(model: object) -> None:
    """An entry has a digest, exact sizes and an exact version, and finds itself."""
    known = find_known_model(model.name)  # type: ignore[attr-defined]
    assert known is model
    assert len(bytes.fromhex(known.sha256)) == 32
    assert known.requirement == f"{known.distribution}=={known.version}"
    assert known.member.endswith(f"/{known.file_name}")
    assert known.wheel_bytes > 0
    assert known.size_bytes > 0


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("smolm2-135m", "smollm2-135m"),
        ("SmolLM2-135M", "smollm2-135m"),
        ("smollm2", "smollm2-135m"),
        ("gpt-5", None),
        ("", None),
    ],
)
def test_a_misspelt_name_has_a_nearest_one(typed: str, meant: str | None) -> None:
    """A near miss suggests what was meant; anything else suggests nothing."""
    expected = "" if meant is None else f"; did you mean {meant!r}?"
    assert known_name_hint(typed) == expected


def test_an_unknown_name_lists_the_known_ones() -> None:
    """The error has the known names and the nearest."""
    with pytest.raises(ModelNotFound, match=r"smollm3.*known: smollm2-135m.*did you"):
        get_known_model("smollm3-135m")


@pytest.mark.parametrize(
    ("own", "shared", "expected"),
    [
        ("/own", "/shared", Path("/own")),
        ("", "/shared", Path("/shared/hybrid")),
        (None, "/shared", Path("/shared/hybrid")),
        (None, None, Path("/home/me/.cache/hybrid")),
        ("~/models", None, Path("/home/me/models")),
    ],
)
def test_the_cache_is_found_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, own: str | None, shared: str | None, expected: Path
) -> None:
    """HYBRID_CACHE wins over XDG_CACHE_HOME, which wins over the home folder."""
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in (("HYBRID_CACHE", own), ("XDG_CACHE_HOME", shared)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert cache_dir() == expected
    assert model_dir("x") == expected / "models" / "x"
    assert converted_dir() == expected / "converted"
