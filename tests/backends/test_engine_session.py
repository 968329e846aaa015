"""An engine that cannot be loaded, or has tensors of another kind, is refused."""

from pathlib import Path

import pytest

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.trtllm.engine_runner import EngineRunner
from hybrid.backends.trtllm.machine import Machine
from hybrid.scheduler.errors import CheckpointError, ConfigError, UnsupportedFeature
from tests.backends.standin_engine import build_standin_engine
from tests.backends.standin_session import Seen, installed_runtime
from tests.backends.trt_engine_stand import CONFIG, HERE, open_engine


@pytest.mark.usefixtures("seen")
def test_tensors_that_nobody_knows_are_refused(llama: Path, tmp_path: Path) -> None:
    """Inputs and outputs by name, when the engine is loaded, before a pool is made."""
    strange = {"lora_ranks": ("INPUT", "INT32"), "present_0": ("OUTPUT", "HALF")}
    with pytest.raises(UnsupportedFeature, match="unknown here: lora_ranks, present_0"):
        open_engine(llama, tmp_path, more_tensors=strange)


@pytest.mark.usefixtures("seen")
def test_an_input_of_another_dtype_is_refused(llama: Path, tmp_path: Path) -> None:
    """An address does not say of what: the engine would misread it in silence."""
    wrong = {"host_kv_cache_pool_pointers": ("INPUT", "INT32")}
    with pytest.raises(UnsupportedFeature, match=r"INT32, must be torch\.int64"):
        open_engine(llama, tmp_path, more_tensors=wrong)


@pytest.mark.usefixtures("seen")
def test_logits_that_are_no_floats_are_refused(llama: Path, tmp_path: Path) -> None:
    """A sampler would take whatever bits there are."""
    wrong = {"logits": ("OUTPUT", "INT32")}
    with pytest.raises(UnsupportedFeature, match="logits is INT32, must be one of FLO"):
        open_engine(llama, tmp_path, more_tensors=wrong)


@pytest.mark.usefixtures("seen")
def test_an_engine_without_its_cache_is_refused(llama: Path, tmp_path: Path) -> None:
    """Whatever its config.json says: a tensor left out would be a cache left out."""
    gone = ["kv_cache_block_offsets", "input_ids"]
    with pytest.raises(
        UnsupportedFeature, match="tensors input_ids, kv_cache_block_of"
    ):
        open_engine(llama, tmp_path, without=gone)


def test_bytes_that_are_no_engine_are_refused(
    llama: Path, tmp_path: Path, seen: Seen
) -> None:
    """By the file, with what the library said."""
    build_standin_engine(llama, tmp_path)
    (tmp_path / "rank0.engine").write_bytes(b"\x00\xff")
    source = ModelSource("e", tmp_path, CheckpointFormat.COMPILED)
    with pytest.raises(CheckpointError, match=r"rank0\.engine cannot be loaded"):
        EngineRunner(source, CONFIG, HERE)
    assert not seen.sessions


def test_without_the_package_it_is_refused(llama: Path, tmp_path: Path) -> None:
    """By the name of what is not installed."""
    with pytest.raises(UnsupportedFeature, match=r"tensorrt_llm.* cannot be imported"):
        open_engine(llama, tmp_path)


def test_a_version_without_engines_is_refused(llama: Path, tmp_path: Path) -> None:
    """Before the plugin or the engine is touched."""
    with (
        installed_runtime("1.4.0rc1") as seen,
        pytest.raises(UnsupportedFeature, match=r"tensorrt_llm 1\.4\.0rc1 is here"),
    ):
        open_engine(llama, tmp_path)
    assert not seen.num_plugin_loads


def test_a_cpu_is_refused(llama: Path, tmp_path: Path) -> None:
    """On a real machine an engine runs on a GPU alone."""
    build_standin_engine(llama, tmp_path)
    source = ModelSource("e", tmp_path, CheckpointFormat.COMPILED)
    with pytest.raises(ConfigError, match="engine runs on cuda, the device is 'cpu'"):
        EngineRunner(source, CONFIG, Machine(("cpu",), None))
