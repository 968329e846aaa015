"""Damaged model files give a model or a CheckpointError, soon, and nothing else."""

import json
import shutil
import struct
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybrid.backends.checkpoint.gguf_conversion import convert_gguf
from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.checkpoint.safetensors_index import check_safetensors
from hybrid.scheduler.errors import CheckpointError, UnsupportedFeature
from hybrid.tokenizer.tokenizer import Tokenizer
from tests.backends.model_directory import load, save
from tests.backends.tiny_checkpoints import make_model, write_gguf

WEIGHTS = "model.safetensors"
Damage = Callable[[bytes, int], bytes]


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    """A function of a file's bytes and of how many of them are its header."""
    is_cut = draw(st.integers(0, 9)) == 0
    # Drawn evenly: where a byte lies decides who reads it, and most lie far inside.
    random = Random(draw(st.integers(0, 2**32)))

    def damage(content: bytes, header_bytes: int) -> bytes:
        if is_cut:
            return content[: random.randrange(header_bytes)]
        changed = bytearray(content)
        for _ in range(random.choice((1, 1, 1, 3))):
            place = random.randrange(header_bytes)
            one_bit = changed[place] ^ 1 << random.randrange(8)
            changed[place] = random.choice((0, 255, random.randrange(256), one_bit))
        return bytes(changed)

    return damage


bounded = settings(
    max_examples=150,
    derandomize=True,
    deadline=timedelta(seconds=20),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def fault_of(action: Callable[[], object]) -> str:
    """Run ``action``; what it says is wrong with the files, or nothing."""
    try:
        action()
    # A changed dtype may be one that is known and not supported.
    except (CheckpointError, UnsupportedFeature) as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def model() -> Any:
    """Make a model of one layer."""
    return make_model("llama", num_hidden_layers=1)


@pytest.fixture(scope="module")
def gguf_content(tmp_path_factory: pytest.TempPathFactory, model: Any) -> bytes:
    """Return the bytes of a small whole GGUF."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, model)
    return path.read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, model: Any) -> Path:
    """Write a small whole directory."""
    return save(tmp_path_factory.mktemp("whole"), model)


def test_undamaged_files_are_models(tmp_path: Path, whole: Path, model: Any) -> None:
    """What the other tests damage is whole."""
    source = write_gguf(tmp_path / "tiny.gguf", model)
    directory = convert_gguf(source, dtype="float32", cache_dir=tmp_path).path
    assert fault_of(lambda: load(directory)) == ""
    assert fault_of(lambda: load(whole)) == ""


@bounded
@given(damage=damages())
def test_a_damaged_gguf_is_a_model_or_an_error(
    tmp_path: Path, gguf_content: bytes, model: Any, damage: Damage
) -> None:
    """From the header to the converted directory, its weights and its tokenizer."""
    path, cache = tmp_path / "damaged.gguf", tmp_path / "converted"
    num_weight_bytes = 4 * sum(map(torch.numel, model.parameters()))
    path.write_bytes(damage(gguf_content, len(gguf_content) - num_weight_bytes))
    shutil.rmtree(cache, ignore_errors=True)
    source = ModelSource("damaged", path, CheckpointFormat.GGUF)

    def convert_and_load() -> None:
        directory = convert_gguf(source, dtype="float32", cache_dir=cache).path
        Tokenizer.from_directory(directory)
        load(directory)

    assert len(fault_of(convert_and_load)) < 2000
    assert not list(cache.glob(".*"))


@bounded
@given(damage=damages())
def test_a_damaged_safetensors_header_is_a_model_or_an_error(
    tmp_path: Path, whole: Path, damage: Damage
) -> None:
    """Whatever passes our check, transformers loads or says what is wrong."""
    shutil.copy(whole / "config.json", tmp_path)
    content = (whole / WEIGHTS).read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", content)
    (tmp_path / WEIGHTS).write_bytes(damage(content, 8 + header_bytes))
    assert len(fault_of(lambda: load(tmp_path))) < 2000


@bounded
@given(
    damage=damages(),
    dtype=st.sampled_from(["F32", "F4", "I64", "Q8", 5, None]),
    shape=st.lists(st.integers(-2, 9) | st.just(10**4000) | st.none(), max_size=4),
    offsets=st.lists(st.integers(-9, 99) | st.just(2**64), max_size=3),
)
def test_an_odd_safetensors_entry_is_whole_or_an_error(
    tmp_path: Path, damage: Damage, dtype: object, shape: object, offsets: object
) -> None:
    """Entries that are JSON and make no sense; then with bytes changed."""
    entry = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
    header = json.dumps({"x": entry}).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(64)
    for data in (content, damage(content, 8 + len(header))):
        (tmp_path / WEIGHTS).write_bytes(data)
        assert len(fault_of(lambda: check_safetensors(tmp_path))) < 500
