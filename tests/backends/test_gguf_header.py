"""The GGUF header reader agrees with gguf's own and survives every kind of damage."""

import contextlib
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybrid.backends.checkpoint.gguf_header import read_gguf_header
from hybrid.scheduler.errors import CheckpointError
from tests.backends.tiny_checkpoints import make_model, write_gguf


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the bytes of a whole, valid file."""

    def more(writer: gguf.GGUFWriter) -> None:
        writer.add_array("test.numbers", [1.5, -2.0])
        writer.add_array("test.flags", [True, False])
        writer.add_int8("test.negative", -3)
        writer.add_uint64("test.large", 1 << 40)
        writer.add_float64("test.double", 0.1)
        writer.add_bool("test.yes", True)

    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, make_model("llama"), metadata=more)
    return path.read_bytes()


def read(tmp_path: Path, content: bytes) -> object:
    """Write ``content`` and read its header."""
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    return read_gguf_header(path)


def header(num_tensors: int, num_entries: int, rest: bytes = b"") -> bytes:
    """Build a file that starts as GGUF version 3 does."""
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_entries) + rest


def text(value: str) -> bytes:
    """Encode a string as GGUF does."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def tensor(
    name: str, shape: tuple[int, ...] = (1,), kind: int = 0, offset: int = 0
) -> bytes:
    """Encode an entry of the tensor table."""
    return (
        text(name)
        + struct.pack("<I", len(shape))
        + struct.pack(f"<{len(shape)}Q", *shape)
        + struct.pack("<IQ", kind, offset)
    )


def test_header_equals_what_gguf_reads(tmp_path: Path, content: bytes) -> None:
    """Every value and every tensor's place is what gguf's own reader finds."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(content)
    expected = gguf.GGUFReader(path)
    got = read_gguf_header(path)
    fields = {k: f for k, f in expected.fields.items() if not k.startswith("GGUF.")}
    assert got.metadata.keys() == fields.keys()
    for key, field in fields.items():
        value = got.metadata[key]
        value = value.tolist() if isinstance(value, np.ndarray) else value
        value = list(value) if isinstance(value, tuple) else value
        assert value == field.contents(), key
        assert type(value) is type(field.contents()), key
    assert len(got.tensors) == len(expected.tensors)
    for entry in expected.tensors:
        ours = got.tensors[entry.name]
        assert ours.offset_bytes == entry.data_offset
        assert ours.num_bytes == entry.n_bytes
        assert ours.shape == tuple(entry.shape[::-1])
        assert ours.type == entry.tensor_type


@pytest.mark.parametrize(
    ("damaged", "fault"),
    [
        (b"", "is empty"),
        (b"GG", "the magic number needs 4 bytes"),
        (b"PK\x03\x04" + b"\0" * 60, r"not a GGUF file.*b'PK"),
        (b"GGUF" + struct.pack("<I", 1) + b"\0" * 60, "version 1; supported: 2, 3"),
        (b"GGUF" + struct.pack("<I", 99) + b"\0" * 60, "version 99"),
        (b"GGUF" + struct.pack(">I", 3) + b"\0" * 60, "big-endian"),
        (header(1 << 60, 0, b"\0" * 99), "number of tensors is 1152921504606846976"),
        (header(0, 1 << 60, b"\0" * 99), "number of entries is 1152921504606846976"),
        (header(0, 1, struct.pack("<Q", 1 << 62) + b"\0" * 9), "metadata entry 0"),
        (
            header(0, 1, struct.pack("<Q", 2) + b"\xff\xfe" + b"\0" * 9),
            "no UTF-8 text",
        ),
        (header(0, 1, text("key") + struct.pack("<I", 77)), "value type 77"),
        (
            header(0, 1, text("key") + struct.pack("<IIQ", 9, 8, 1 << 50)),
            "length of key is 1125899906842624",
        ),
        (
            header(0, 1, text("key") + struct.pack("<IIQ", 9, 4, 1 << 50)),
            "length of key",
        ),
        (
            header(
                0,
                1,
                text("key")
                + struct.pack("<I", 9)
                + 9 * b"\x09\0\0\0\x01\0\0\0\0\0\0\0",
            ),
            "nests lists",
        ),
        (
            header(0, 2, 2 * (text("key") + struct.pack("<II", 4, 1))),
            "key is there twice",
        ),
        (
            header(0, 1, text("split.count") + struct.pack("<IH", 2, 3)),
            "one of 3 parts of a split model.*--merge",
        ),
        (
            header(0, 1, text("general.alignment") + struct.pack("<II", 4, 3)),
            "no power of two",
        ),
        (
            header(0, 1, text("split.count") + struct.pack("<I", 8) + text("many")),
            "split.count is no integer: 'many'",
        ),
        (header(2, 0, 2 * tensor("twin") + b"\0" * 64), "twin is there twice"),
        (header(1, 0, tensor("odd", kind=99) + b"\0" * 64), "odd has unknown type 99"),
        (header(1, 0, tensor("flat", ()) + b"\0" * 64), "flat has 0 dimensions"),
        (
            header(1, 0, tensor("deep", (1,) * 5) + b"\0" * 64),
            "deep has 5 dimensions",
        ),
        (header(1, 0, tensor("none", (0, 3)) + b"\0" * 64), r"none has shape \(3, 0\)"),
        (
            header(1, 0, tensor("block", (33,), kind=2) + b"\0" * 64),
            "block has shape.*multiple of 32",
        ),
        (
            header(1, 0, tensor("huge", (1 << 40, 1 << 40)) + b"\0" * 64),
            "truncated: tensor huge ends at byte",
        ),
        (
            header(1, 0, tensor("far", offset=1 << 63) + b"\0" * 64),
            "truncated: tensor far ends at byte",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damage_is_named(tmp_path: Path, damaged: bytes, fault: str) -> None:
    """Each kind of damage is an error that says what and where, at once."""
    with pytest.raises(CheckpointError, match=fault):
        read(tmp_path, damaged)


def test_file_cut_anywhere_is_an_error(tmp_path: Path, content: bytes) -> None:
    """However much of the file is missing, the reader says that it is cut."""
    for length in range(0, len(content) - 32, max(1, len(content) // 300)):
        with pytest.raises(CheckpointError, match=r"truncated|empty"):
            read(tmp_path, content[:length])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_bytes_never_do_worse_than_an_error(
    tmp_path: Path, content: bytes, data: st.DataObject
) -> None:
    """Random bytes in the header give a header or a named error, nothing else."""
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, 12000))
        damaged[position] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CheckpointError):
        read(tmp_path, bytes(damaged))


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    """A path without a file is named."""
    with pytest.raises(CheckpointError, match=r"gone\.gguf cannot be read"):
        read_gguf_header(tmp_path / "gone.gguf")


@pytest.mark.parametrize(
    ("method", "what"),
    [
        ("integer", "no integer"),
        ("number", "no number"),
        ("text", "no string"),
        ("flag", "no boolean"),
        ("strings", "no list of strings"),
        ("numbers", "no list of numbers"),
    ],
)
def test_values_of_another_type_are_named(
    tmp_path: Path, content: bytes, method: str, what: str
) -> None:
    """A key of the wrong type is an error; an absent one is no value."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(content)
    got = read_gguf_header(path)
    wrong = "general.architecture" if method != "text" else "llama.block_count"
    assert getattr(got, method)("absent") is None
    with pytest.raises(CheckpointError, match=f"{wrong} is {what}"):
        getattr(got, method)(wrong)
