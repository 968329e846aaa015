"""The tokenizer that a client takes from its server, or refuses."""

import asyncio
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from hybrid import CheckpointError, SamplingParams
from hybrid.client import AsyncHybridClient, HybridClient, RpcFailed, tokenizer_download
from tests.hybrid.cli_stand import write_tiny_model
from tests.serving.client_stand import (
    ScriptedService,
    answers,
    model_files,
    pack,
    pieces,
    running_script,
    sent,
)
from tests.serving.service_stand import TIMEOUT_S


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that a test unpacks is left on the disk, in the folder or beside it."""
    folder = tmp_path / "outer" / "temporary"
    folder.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.parent.rglob("*")) == [folder]


def fetch(archive: list[Any] | None) -> Any:
    """What a client makes of it."""
    with (
        running_script(ScriptedService(answers(7), archive=archive)) as address,
        HybridClient(address) as client,
    ):
        return client.tokenizer()


def test_a_good_archive_is_taken(tmp_path: Path) -> None:
    """Folders in it are no harm."""
    files: dict[str | zipfile.ZipInfo, bytes] = {
        **model_files(tmp_path / "model"),
        "more/": b"",
        "more/notes.jinja": b"x",
    }
    assert fetch(sent(pack(files))).encode("ab") != []


def link(name: str) -> zipfile.ZipInfo:
    """An entry that points at another file."""
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


def odd(name: str) -> zipfile.ZipInfo:
    """An entry of a kind that Python unpacks in one go, however much it is."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_BZIP2
    return entry


EVIL: dict[str, tuple[str, dict[str | zipfile.ZipInfo, bytes]]] = {
    "up": ("'../evil.json'", {"../evil.json": b"{}"}),
    "up within": ("'a/../../evil'", {"a/../../evil": b"{}"}),
    "absolute": ("'/evil.json'", {"/evil.json": b"{}"}),
    "backslash": (r"evil", {"..\\evil.json": b"{}"}),
    "drive": ("'C:evil'", {"C:evil": b"{}"}),
    "link": ("no plain file", {link("tokenizer.json"): b"/etc/passwd"}),
    "many": ("51 files, at most 50", {f"{n}.json": b"" for n in range(51)}),
    "empty": ("no tokenizer", {}),
    "clash": ("cannot be unpacked", {"a": b"x", "a/b": b"x"}),
    "dot": ("cannot be unpacked", {".": b"x"}),
    "long": ("cannot be unpacked", {"a" * 300: b"x"}),
    "odd": ("packed in an odd way", {odd("tokenizer.json"): bytes(10_000)}),
}


@pytest.mark.parametrize("case", EVIL)
def test_an_evil_archive_is_refused(case: str) -> None:
    """Nothing of it is written, and the message says what is wrong."""
    words, files = EVIL[case]
    with pytest.raises(CheckpointError, match=words.replace(".", r"\.")):
        fetch(sent(pack(files)))


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says it unpacks to is checked, and more than it says is not read."""
    monkeypatch.setattr(tokenizer_download, "MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(CheckpointError, match="1001 bytes unpacked, at most 1000"):
        fetch(sent(pack({"a": bytes(600), "b": bytes(401)})))
    data = pack({"a": bytes(100_000)})
    size = (100_000).to_bytes(4, "little")
    assert data.count(size) == 2  # in the entry, and in the directory at the end
    with pytest.raises(CheckpointError, match="cannot be unpacked"):
        fetch(sent(data.replace(size, (10).to_bytes(4, "little"))))


def test_an_endless_archive_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends more than a tokenizer is not listened to any longer."""
    monkeypatch.setattr(tokenizer_download, "MAX_BYTES", 1000)
    with pytest.raises(CheckpointError, match="1001 bytes, at most 1000"):
        fetch(pieces(bytes(2002), ""))


@pytest.mark.parametrize("fingerprint", ["", "0" * 64])
def test_a_wrong_fingerprint_is_refused(tmp_path: Path, fingerprint: str) -> None:
    """Half an archive, or another one, is not unpacked."""
    data = pack(dict(model_files(tmp_path / "model")))
    with pytest.raises(CheckpointError, match="SHA-256"):
        fetch(pieces(data, fingerprint))


@pytest.mark.parametrize("data", [b"", b"no zip at all"])
def test_what_is_no_zip_is_refused(data: bytes) -> None:
    """The right fingerprint of the wrong thing does not help."""
    with pytest.raises(CheckpointError, match="cannot be unpacked"):
        fetch(sent(data))


def test_after_a_refusal_it_is_fetched_again(tmp_path: Path) -> None:
    """A fault is not remembered as the server's answer."""
    data = pack(dict(model_files(tmp_path / "model")))
    service = ScriptedService(answers(7), archive=pieces(data, "bad"))
    with running_script(service) as address, HybridClient(address) as client:
        with pytest.raises(CheckpointError):
            client.generate("text")
        service._archive = sent(data)
        assert client.generate("text")[0].token_ids == (7,)
        assert client.generate("text")[0].token_ids == (7,)
    assert service.num_tokenizer_calls == 2


def test_a_server_without_tokenizer_serves_ids() -> None:
    """Ids come and go without text; text is refused in the server's words."""
    service = ScriptedService(answers(7))
    with running_script(service) as address, HybridClient(address) as client:
        for _ in range(2):
            (answer,) = client.generate([1, 2])
            assert (answer.text, answer.token_ids) == ("", (7,))
        assert service.num_tokenizer_calls == 1
        with pytest.raises(RpcFailed, match="has none"):
            client.generate("text")
        with pytest.raises(RpcFailed, match="has none"):
            client.chat([{"role": "user", "content": "text"}])


def test_many_tasks_fetch_it_once(tmp_path: Path) -> None:
    """The first fetches, the others wait for it."""
    data = pack(dict(model_files(tmp_path / "model")))
    service = ScriptedService(answers(7), archive=sent(data))

    async def main(address: str) -> None:
        async with (
            asyncio.timeout(TIMEOUT_S),
            AsyncHybridClient(address) as client,
        ):
            params = SamplingParams(max_tokens=1)
            await asyncio.gather(*(client.generate("text", params) for _ in range(8)))

    with running_script(service) as address:
        asyncio.run(main(address), debug=True)
    assert service.num_tokenizer_calls == 1


def test_a_character_is_shown_whole(tmp_path: Path) -> None:
    """Its bytes come one by one; no part of the text is half a character."""
    text = "né 🙂 世"
    backend = tokenizers.Tokenizer.from_file(
        str(write_tiny_model(tmp_path / "model") / "tokenizer.json")
    )
    token_ids = backend.encode(text).ids
    assert len(token_ids) == len(text.encode())
    archive = sent(pack(dict(model_files(tmp_path / "model"))))
    service = ScriptedService(answers(*token_ids, reason="length"), archive=archive)
    with running_script(service) as address, HybridClient(address) as client:
        parts = [part.text for part in client.stream([5])]
        assert [piece for piece in parts if piece] == list(text)
        assert client.generate([5])[0].text == text


def test_the_models_end_has_no_text(tmp_path: Path) -> None:
    """Not even where special tokens are shown, streamed or not; within, it has."""
    path = write_tiny_model(tmp_path / "model")
    backend = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    token_ids = backend.encode("a</s>b</s>").ids
    archive = sent(pack(dict(model_files(tmp_path / "model"))))
    service = ScriptedService(answers(*token_ids), archive=archive)
    params = SamplingParams(skip_special_tokens=False, ignore_eos=True)
    with running_script(service) as address, HybridClient(address) as client:
        streamed = "".join(part.text for part in client.stream([5], params))
        assert streamed == client.generate([5], params)[0].text == "a</s>b"
