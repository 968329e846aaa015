"""A directory's safetensors are checked by their headers before anything loads them."""

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hybrid.backends.checkpoint.safetensors_index import check_safetensors
from hybrid.scheduler.errors import CheckpointError

INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Write two whole shards with an index."""
    save_file({"a": torch.ones(4, 4), "b": torch.ones(3)}, tmp_path / "one.safetensors")
    save_file({"c": torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "two.safetensors")
    write_index(tmp_path, {"a": "one", "b": "one", "c": "two"})
    return tmp_path


def write_index(directory: Path, places: dict[str, str]) -> None:
    """Say which shard holds which tensor."""
    weight_map = {name: f"{shard}.safetensors" for name, shard in places.items()}
    (directory / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def raw(directory: Path, header: bytes, data: bytes = b"") -> None:
    """Write a single file byte by byte."""
    content = struct.pack("<Q", len(header)) + header + data
    (directory / "model.safetensors").write_bytes(content)


def test_whole_shards_pass(sharded: Path) -> None:
    """The summary has every tensor's dtype and shape and all the bytes."""
    summary = check_safetensors(sharded)
    assert summary.tensors == {
        "a": ("F32", (4, 4)),
        "b": ("F32", (3,)),
        "c": ("BF16", (2,)),
    }
    assert summary.num_bytes == 16 * 4 + 3 * 4 + 2 * 2
    assert [file.name for file in summary.files] == [
        "one.safetensors",
        "two.safetensors",
    ]


def test_single_file_needs_no_index(tmp_path: Path) -> None:
    """One file by the usual name is a model."""
    save_file({"a": torch.ones(4)}, tmp_path / "model.safetensors")
    assert check_safetensors(tmp_path).tensors == {"a": ("F32", (4,))}


def test_missing_shard_is_named(sharded: Path) -> None:
    """A shard that the index names and nobody has."""
    (sharded / "two.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"two\.safetensors is missing"):
        check_safetensors(sharded)


@pytest.mark.parametrize("keep", [0, 4, 40, -1])
def test_truncated_shard_is_named(sharded: Path, keep: int) -> None:
    """Cut in its length, in its header or in its last byte."""
    path = sharded / "one.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"one\.safetensors is truncated"):
        check_safetensors(sharded)


def test_tensor_that_its_shard_lacks_is_named(sharded: Path) -> None:
    """The index promises what no shard holds."""
    write_index(sharded, {"a": "one", "b": "one", "c": "two", "d": "two"})
    with pytest.raises(CheckpointError, match=r"tensor d is in two.*lacks"):
        check_safetensors(sharded)


def test_tensor_in_another_shard_is_named(sharded: Path) -> None:
    """The index points at the wrong shard."""
    write_index(sharded, {"a": "one", "b": "two", "c": "two"})
    with pytest.raises(CheckpointError, match=r"tensor b is in two.*is in one"):
        check_safetensors(sharded)


def test_tensor_in_two_shards_is_named(sharded: Path) -> None:
    """Which of the two would win is nobody's guess."""
    save_file({"c": torch.ones(2), "b": torch.ones(3)}, sharded / "two.safetensors")
    with pytest.raises(CheckpointError, match=r"tensor b is in both .*one.* and .*two"):
        check_safetensors(sharded)


def test_tensor_outside_the_index_is_named(sharded: Path) -> None:
    """A tensor that the index forgets would be loaded never."""
    write_index(sharded, {"a": "one", "c": "two"})
    with pytest.raises(CheckpointError, match=r"has tensor b, which .* does not name"):
        check_safetensors(sharded)


def test_directory_without_weights_says_what_it_has(tmp_path: Path) -> None:
    """Empty, or with files of another kind."""
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        check_safetensors(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match=r"it has pytorch_model\.bin"):
        check_safetensors(tmp_path)
    with pytest.raises(CheckpointError, match="is no directory"):
        check_safetensors(tmp_path / "gone")


@pytest.mark.parametrize(
    "index",
    [
        "{",
        "[]",
        "{}",
        '{"weight_map": {}}',
        '{"weight_map": [1]}',
        '{"weight_map": {"a": "../../secret.safetensors"}}',
        '{"weight_map": {"a": "/etc/passwd"}}',
        '{"weight_map": {"a": ".."}}',
        '{"weight_map": {"a": 5}}',
        '{"weight_map": ' + "[" * 100_000,
    ],
    ids=range(10),
)
def test_broken_index_is_an_error(tmp_path: Path, index: str) -> None:
    """Whatever the index holds, it cannot lead elsewhere or crash the reader."""
    (tmp_path / INDEX).write_text(index)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        check_safetensors(tmp_path)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "truncated or no safetensors"),
        (b"\xff" * 64, "header is said to have 18446744073709551615 bytes"),
        (struct.pack("<Q", 4) + b"nope", "is no safetensors file"),
        (struct.pack("<Q", 2) + b"[]", "its header is no object"),
        (struct.pack("<Q", 2) + b"\xff\xfe", "is no safetensors file"),
        (struct.pack("<Q", 60_000) + b"[" * 60_000, "is no safetensors file"),
    ],
    ids=range(6),
)
def test_files_of_another_kind_are_named(
    tmp_path: Path, content: bytes, fault: str
) -> None:
    """A hostile length costs no memory; other files are called what they are not."""
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=fault):
        check_safetensors(tmp_path)


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ({"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}, "needs 16 bytes"),
        ({"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}, "needs 16 bytes"),
        ({"dtype": "F32", "shape": [-4], "data_offsets": [0, -16]}, "makes no sense"),
        ({"dtype": "Q4", "shape": [4], "data_offsets": [0, 16]}, "makes no sense"),
        ({"dtype": "F32", "shape": "4", "data_offsets": [0, 16]}, "makes no sense"),
        ({"dtype": "F32", "shape": [4], "data_offsets": [0]}, "makes no sense"),
        ({"dtype": "F32", "shape": [4]}, "makes no sense"),
        ("F32", "makes no sense"),
        ({"dtype": "F32", "shape": [4], "data_offsets": [8, 24]}, "truncated"),
        ({"dtype": "F32", "shape": [4.0], "data_offsets": [0, 16]}, "makes no sense"),
        ({"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}, "makes no sense"),
        ({"dtype": "F32", "shape": [1] * 99, "data_offsets": [0, 4]}, "makes no sense"),
        (
            {"dtype": "F32", "shape": [10**4000] * 2, "data_offsets": [0, 16]},
            r"needs an integer of \d+ bits",
        ),
    ],
    ids=range(13),
)
def test_entries_that_make_no_sense_are_named(
    tmp_path: Path, entry: object, fault: str
) -> None:
    """Each entry must agree with itself and lie inside the file."""
    raw(tmp_path, json.dumps({"weird": entry}).encode(), b"\0" * 16)
    with pytest.raises(CheckpointError, match=rf"weird.*{fault}|{fault}.*weird"):
        check_safetensors(tmp_path)


def test_a_single_file_beside_an_index_is_refused(sharded: Path) -> None:
    """Loaders choose between the two in silence, and they may differ."""
    save_file({"a": torch.zeros(4, 4)}, sharded / "model.safetensors")
    with pytest.raises(
        CheckpointError,
        match=rf"both model\.safetensors and {INDEX}.* one\.safetensors",
    ):
        check_safetensors(sharded)


def test_an_index_may_name_the_single_file(tmp_path: Path) -> None:
    """Then there is one model only."""
    save_file({"a": torch.ones(4)}, tmp_path / "model.safetensors")
    write_index(tmp_path, {"a": "model"})
    assert check_safetensors(tmp_path).tensors == {"a": ("F32", (4,))}


def test_a_tensor_named_twice_is_refused(tmp_path: Path) -> None:
    """In one header or in the index; JSON readers take either one."""
    entry = '"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}'
    raw(tmp_path, f"{{{entry}, {entry}}}".encode(), b"\0" * 16)
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors.*'a' is there twice"
    ):
        check_safetensors(tmp_path)
    (tmp_path / INDEX).write_text('{"weight_map": {"a": "b", "a": "c"}}')
    with pytest.raises(CheckpointError, match=r"index\.json.*'a' is there twice"):
        check_safetensors(tmp_path)


def test_errors_stay_short(tmp_path: Path) -> None:
    """Whatever the header holds, it does not fill the terminal."""
    for header in (
        {"x" * 100_000: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
        {"x": {"dtype": "y" * 100_000}},
        {"x": {"dtype": "F32", "shape": [10**4000] * 60, "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "shape": [1], "data_offsets": [10**4000, 10**4000]}},
        {"x": {"dtype": "U8", "shape": [0], "data_offsets": [10**4000, 10**4000]}},
    ):
        raw(tmp_path, json.dumps(header).encode())
        with pytest.raises(CheckpointError) as caught:
            check_safetensors(tmp_path)
        assert len(str(caught.value)) < 500
