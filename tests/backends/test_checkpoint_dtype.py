"""Which dtype ``auto`` stands for, and which are refused."""

import json
from pathlib import Path

import pytest

from hybrid.backends.checkpoint.dtype import resolve_dtype
from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import Capabilities
from hybrid.scheduler.errors import CheckpointError, ConfigError

CAPABILITIES = Capabilities(
    name="torch",
    description="",
    devices=("cpu", "cuda"),
    dtypes=("float32", "bfloat16", "float16"),
    fast_dtypes={"cpu": ("bfloat16", "float32"), "cuda": ("float16",)},
    block_sizes=(16,),
)


def directory_with(tmp_path: Path, config: str) -> ModelSource:
    """Make a directory that holds a config.json and nothing else."""
    (tmp_path / "config.json").write_text(config)
    return ModelSource("m", tmp_path, CheckpointFormat.HF_DIRECTORY)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"dtype": "float32"}, "float32"),
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "torch.float32"}, "float32"),
        ({"text_config": {"dtype": "float32"}}, "float32"),
        ({"dtype": "float16"}, "bfloat16"),
        ({"dtype": None}, "bfloat16"),
        ({}, "bfloat16"),
    ],
)
def test_auto_is_the_models_own_where_fast(
    tmp_path: Path, config: dict[str, object], expected: str
) -> None:
    """The checkpoint's dtype if the device is fast in it, else the first fast one."""
    source = directory_with(tmp_path, json.dumps(config))
    assert resolve_dtype("auto", source, CAPABILITIES, "cpu") == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"pretrained_config": {"dtype": "float16"}}, "float16"),
        ({"pretrained_config": {}, "dtype": "float32"}, "float32"),
        ({"pretrained_config": [], "dtype": "float16"}, "bfloat16"),
        ({"dtype": "float32"}, "float32"),
    ],
)
def test_auto_of_a_tensorrt_engine_is_what_was_compiled_in(
    tmp_path: Path, config: dict[str, object], expected: str
) -> None:
    """Fast or not: no other can be had. Another compiled form is as a checkpoint."""
    found = directory_with(tmp_path, json.dumps(config))
    source = ModelSource("m", found.path, CheckpointFormat.COMPILED)
    assert resolve_dtype("auto", source, CAPABILITIES, "cpu") == expected


def test_auto_of_an_engine_in_a_dtype_that_nobody_has_is_refused(
    tmp_path: Path,
) -> None:
    """By the engine's dtype, not by the word that stood for it."""
    config = json.dumps({"pretrained_config": {"dtype": "float64"}})
    found = directory_with(tmp_path, config)
    source = ModelSource("m", found.path, CheckpointFormat.COMPILED)
    with pytest.raises(ConfigError, match="dtype='float64': executor 'torch' computes"):
        resolve_dtype("auto", source, CAPABILITIES, "cpu")


def test_auto_of_a_gguf_is_the_first_fast_one(tmp_path: Path) -> None:
    """A GGUF has no dtype of its own; the file is not even opened."""
    source = ModelSource("m", tmp_path / "gone.gguf", CheckpointFormat.GGUF)
    assert resolve_dtype("auto", source, CAPABILITIES, "cpu") == "bfloat16"


@pytest.mark.parametrize(
    ("config", "expected"), [({}, "float16"), ({"dtype": "float16"}, "float16")]
)
def test_auto_asks_the_device_that_was_chosen(
    tmp_path: Path, config: dict[str, object], expected: str
) -> None:
    """Not the executor's first device, which is fast in other dtypes."""
    source = directory_with(tmp_path, json.dumps(config))
    assert resolve_dtype("auto", source, CAPABILITIES, "cuda") == expected
    assert resolve_dtype("auto", source, CAPABILITIES, "cpu") == "bfloat16"


@pytest.mark.parametrize(
    ("requested", "expected"),
    [("half", "float16"), ("float", "float32"), ("bfloat16", "bfloat16")],
)
def test_asked_for_is_given(tmp_path: Path, requested: str, expected: str) -> None:
    """Names and their short forms."""
    source = ModelSource("m", tmp_path, CheckpointFormat.GGUF)
    assert resolve_dtype(requested, source, CAPABILITIES, "cpu") == expected


@pytest.mark.parametrize("requested", ["float64", "int8", "", "bf17"])
def test_others_are_refused_with_the_supported(tmp_path: Path, requested: str) -> None:
    """The error names the executor and what it computes in."""
    source = ModelSource("m", tmp_path, CheckpointFormat.GGUF)
    with pytest.raises(ConfigError, match=r"'torch'.*float32, bfloat16, float16"):
        resolve_dtype(requested, source, CAPABILITIES, "cpu")


@pytest.mark.parametrize("config", ["{", "[]", "\ud800".encode("utf-8", "replace")])
def test_broken_config_is_named(tmp_path: Path, config: str | bytes) -> None:
    """A config.json that is no object is the checkpoint's fault."""
    text = config if isinstance(config, str) else config.decode()
    source = directory_with(tmp_path, text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        resolve_dtype("auto", source, CAPABILITIES, "cpu")
