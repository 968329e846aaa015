"""The tokenizer as a zip: whole, in pieces, within a gateway's limits."""

import asyncio
import hashlib
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2

from hybrid.scheduler import CheckpointError
from hybrid.serving import tokenizer_archive
from hybrid.serving.served_model import ServedModel
from hybrid.serving.tokenizer_archive import Archive, TokenizerArchive
from hybrid.tokenizer.tokenizer import Tokenizer
from tests.hybrid.cli_stand import write_tiny_model
from tests.hybrid.null_stand import make_engine
from tests.serving.service_stand import Served, load_tiny, refusal, serve

TEXT = "A tokenizer travels."


def archive_of(folder: Path) -> Archive:
    """The archive of a model's directory."""
    archive = TokenizerArchive(folder, Tokenizer.from_directory(folder))
    return asyncio.run(archive.get())


def names_in(archive: Archive) -> list[str]:
    """The archive's entries."""
    return zipfile.ZipFile(io.BytesIO(archive.data)).namelist()


def test_a_client_can_build_the_tokenizer_from_what_it_gets(tmp_path: Path) -> None:
    """Pieces of 64 KiB at most, the fingerprint of the whole on the last alone."""
    loaded = load_tiny(tmp_path / "model")
    # Cannot be compressed, so that there is more than one piece.
    (tmp_path / "model" / "extra.tiktoken").write_bytes(os.urandom(200_000))

    async def body(served: Served) -> list[Any]:
        call = served.stub.GetTokenizer(common_pb2.GetTokenizerRequest())
        return [chunk async for chunk in call]

    chunks = serve(loaded.engine, body, ServedModel.of(loaded))
    data = b"".join(chunk.data for chunk in chunks)
    assert len(chunks) > 3
    assert {len(chunk.data) for chunk in chunks[:-1]} == {64 * 1024}
    assert {chunk.sha256 for chunk in chunks[:-1]} == {""}
    assert chunks[-1].sha256 == hashlib.sha256(data).hexdigest()
    zipfile.ZipFile(io.BytesIO(data)).extractall(tmp_path / "copy")
    rebuilt = Tokenizer.from_directory(tmp_path / "copy")
    original = Tokenizer.from_directory(tmp_path / "model")
    assert rebuilt.encode(TEXT) == original.encode(TEXT)
    messages = [{"role": "user", "content": TEXT}]
    assert rebuilt.apply_chat_template(messages) == original.apply_chat_template(
        messages
    )


def test_a_server_without_text_says_so() -> None:
    """FAILED_PRECONDITION: the gateway must bring a tokenizer of its own."""

    async def body(served: Served) -> grpc.aio.AioRpcError:
        call = served.stub.GetTokenizer(common_pb2.GetTokenizerRequest())
        return await refusal(call)

    status = serve(make_engine(), body)
    assert status.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "token ids" in str(status.details())


def test_weights_and_folders_stay_at_home(tmp_path: Path) -> None:
    """Only what a tokenizer is made of travels."""
    write_tiny_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "notes.txt").write_text("private")
    (tmp_path / "sub.model").mkdir()
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert names_in(archive_of(tmp_path)) == [
        "tokenizer.json",
        "tokenizer_config.json",
        "config.json",
        "chat_template.jinja",
    ]


def test_a_missing_tokenizer_file_is_written(tmp_path: Path) -> None:
    """Models that keep it in another format get the one that gateways read."""
    write_tiny_model(tmp_path)
    tokenizer = Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    archive = asyncio.run(TokenizerArchive(tmp_path, tokenizer).get())
    content = zipfile.ZipFile(io.BytesIO(archive.data)).read("tokenizer.json")
    (tmp_path / "tokenizer.json").write_bytes(content)
    assert Tokenizer.from_directory(tmp_path).encode(TEXT) == tokenizer.encode(TEXT)


def test_equal_files_have_equal_fingerprints(tmp_path: Path) -> None:
    """Gateways compare workers by them; dates do not count."""
    first = write_tiny_model(tmp_path / "a")
    second = write_tiny_model(tmp_path / "b")
    os.utime(second / "tokenizer.json", (0, 10**9))
    assert archive_of(first).sha256 == archive_of(second).sha256
    (second / "merges.txt").write_text("")
    assert archive_of(first).sha256 != archive_of(second).sha256


def test_it_is_built_once_for_all_who_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers at the same time share one archive."""
    write_tiny_model(tmp_path)
    archive = TokenizerArchive(tmp_path, Tokenizer.from_directory(tmp_path))
    builds: list[Archive] = []
    build = archive._build

    def counted() -> Archive:
        builds.append(build())
        return builds[-1]

    monkeypatch.setattr(archive, "_build", counted)

    async def main() -> list[Archive]:
        return await asyncio.gather(*(archive.get() for _ in range(5)))

    answers = asyncio.run(main())
    assert len(builds) == 1
    assert all(answer is builds[0] for answer in answers)


@pytest.mark.parametrize("limit", ["MAX_FILES", "MAX_BYTES", "MAX_UNPACKED_BYTES"])
def test_an_archive_that_no_gateway_takes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """The error says what there is too much of."""
    write_tiny_model(tmp_path)
    monkeypatch.setattr(tokenizer_archive, limit, 1)
    with pytest.raises(CheckpointError, match="gateways take 1"):
        archive_of(tmp_path)
