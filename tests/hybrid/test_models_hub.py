"""Fetching from the Hugging Face hub, without a network."""

from pathlib import Path
from typing import Any

import pytest

from hybrid.models import resolve_model
from hybrid.models.hub import fetch_from_hub, is_hub_id
from hybrid.scheduler.errors import ModelNotFound

hub = pytest.importorskip("huggingface_hub")
errors = pytest.importorskip("huggingface_hub.errors")


@pytest.mark.parametrize(
    ("name", "is_id"),
    [
        ("owner/name", True),
        ("meta-llama/Llama-3.2-1B", True),
        ("name", False),
        ("a/b/c", False),
        ("/owner/name", False),
        ("./owner/name", False),
        ("../name", False),
        ("~/name", False),
        ("owner/", False),
        ("owner/na me", False),
        ("", False),
    ],
)
def test_ids_have_an_owner_and_a_name(name: str, is_id: bool) -> None:
    """Paths are never taken for ids."""
    assert is_hub_id(name) is is_id


def test_a_snapshot_becomes_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Config, weights and tokenizer of the revision are asked for, nothing twice."""
    asked: dict[str, Any] = {}

    def snapshot(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        (tmp_path / "config.json").write_text("{}", encoding="utf-8")
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    source = resolve_model("owner/name", revision="v2")
    assert source.path == tmp_path
    assert (asked["name"], asked["revision"]) == ("owner/name", "v2")
    from huggingface_hub.utils import filter_repo_objects  # noqa: PLC0415 - an extra

    files = ["config.json", "model-1.safetensors", "tokenizer.model", "merges.txt"]
    files += ["tokenizer.json", "chat_template.jinja", "model.safetensors.index.json"]
    others = ["pytorch_model.bin", "consolidated.safetensors", "onnx/config.json"]
    others += ["original/consolidated.00.pth", "README.md", "model.gguf"]
    kept = filter_repo_objects(
        [*files, *others],
        allow_patterns=asked["allow_patterns"],
        ignore_patterns=asked["ignore_patterns"],
    )
    assert list(kept) == files


def test_bytes_of_all_files_are_one_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both byte bars feed one growing count; the bar of files is not mixed in."""

    def snapshot(_name: str, *, tqdm_class: Any, **_options: Any) -> str:
        wire = tqdm_class(total=0, unit="B", desc="Downloading bytes")
        disk = tqdm_class(total=0, unit="B", desc="Reconstructing")
        with tqdm_class(total=2, desc="Fetching 2 files") as files:
            for size in (100, 50):
                wire.total += size
                disk.total += size
                disk.refresh()
                wire.update(size)
                disk.update(size)
                files.update()
        disk.set_description("Reconstruction complete")
        return "."

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    seen: list[tuple[str, int, int]] = []
    fetch_from_hub("owner/name", progress=lambda *now: seen.append(now))
    assert seen == [("fetch owner/name", 100, 100), ("fetch owner/name", 150, 150)]


def test_offline_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network and without a snapshot the line says both."""
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound, match="not in the Hugging Face cache") as caught:
        resolve_model("hybrid-test/absent")
    assert "smollm2-135m" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("disk\nfull"), "OSError: disk"),
        (ValueError("bad id"), "ValueError: bad id"),
        (errors.LocalEntryNotFoundError("x"), "not in the Hugging Face cache"),
        (errors.OfflineModeIsEnabled("x"), "HF_HUB_OFFLINE is set"),
    ],
)
def test_failures_of_the_hub_are_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    """Whatever the hub raises arrives as a model not found, with the reason."""

    def fail(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(ModelNotFound, match=reason) as caught:
        fetch_from_hub("owner/name")
    assert "\n" not in str(caught.value)


def test_without_the_library_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A core install says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(ModelNotFound, match=r"hybrid-llm-engine\[torch\]"):
        fetch_from_hub("owner/name")
