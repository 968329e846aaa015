"""A compiled engine's own words are read; what it was not built for is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.backends.interface import ExecutorConfig
from hybrid.backends.trtllm.engine_check import (
    check_engine,
    check_version,
    runs_engines,
)
from hybrid.backends.trtllm.engine_config import BuiltEngine, read_engine_config
from hybrid.scheduler.errors import CheckpointError, ConfigError, UnsupportedFeature
from tests.backends.standin_engine import engine_config

HF_CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "vocab_size": 320,
    "max_position_embeddings": 512,
}
ASKED = ExecutorConfig(dtype="float32", block_size=32, max_num_seqs=8)
INSTALLED = "1.2.1"


def written(folder: Path, content: object) -> Path:
    """Write a config.json."""
    (folder / "config.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def engine(tmp_path: Path) -> BuiltEngine:
    """One that everything is right with."""
    return read_engine_config(written(tmp_path, engine_config(HF_CONFIG, INSTALLED)))


def test_a_config_is_read(engine: BuiltEngine, tmp_path: Path) -> None:
    """Each field from its place in the nested file."""
    assert engine == BuiltEngine(
        path=tmp_path,
        version="1.2.1",
        architecture="LlamaForCausalLM",
        dtype="float32",
        vocab_size=320,
        num_layers=3,
        num_kv_heads=2,
        head_dim=16,
        kv_quantization=None,
        num_ranks=1,
        block_size=32,
        max_batch_size=256,
        max_num_tokens=8192,
        max_seq_len=512,
        max_beam_width=1,
        max_draft_len=0,
        is_paged=True,
        has_attention_plugin=True,
        removes_input_padding=True,
        reads_cached_context=True,
        has_multiple_profiles=False,
    )
    check_engine(engine, ASKED)


@pytest.mark.parametrize(
    ("kind", "is_paged"),
    [
        ("PAGED", True),
        ("paged", True),
        ("Kind.PAGED", True),
        ("DISABLED", False),
    ],
)
def test_the_kind_of_cache_is_read_in_every_spelling(
    tmp_path: Path, kind: str, is_paged: bool
) -> None:
    """The flag of early versions counts only where no kind is named."""
    config = engine_config(HF_CONFIG, INSTALLED)
    config["build_config"]["kv_cache_type"] = kind
    assert read_engine_config(written(tmp_path, config)).is_paged is is_paged
    del config["build_config"]["kv_cache_type"]
    config["build_config"]["plugin_config"]["paged_kv_cache"] = not is_paged
    assert read_engine_config(written(tmp_path, config)).is_paged is not is_paged


def test_paged_contexts_without_fused_attention_are_none(tmp_path: Path) -> None:
    """TensorRT-LLM drops the one in silence where the other is off."""
    config = engine_config(HF_CONFIG, INSTALLED)
    config["build_config"]["plugin_config"]["context_fmha"] = False
    assert not read_engine_config(written(tmp_path, config)).reads_cached_context


@pytest.mark.parametrize(
    ("name", "dtype"), [(None, "float32"), ("FP8", "float8_e4m3fn"), ("INT8", "int8")]
)
def test_the_caches_dtype_follows_its_quantisation(
    engine: BuiltEngine, name: str | None, dtype: str
) -> None:
    """That of the model where the cache is not quantised."""
    assert replace(engine, kv_quantization=name).kv_dtype == dtype


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["version"], None, r"version is None, must be a text"),
        (["pretrained_config"], [], r"pretrained_config is \[\], must be an object"),
        (["pretrained_config", "head_size"], ..., "head_size is absent"),
        (["pretrained_config", "vocab_size"], True, "vocab_size is True, must be a w"),
        (["pretrained_config", "dtype"], "", "pretrained_config.dtype is ''"),
        (["build_config", "max_seq_len"], 0, "max_seq_len is 0, must be a whole numb"),
        (["build_config", "max_batch_size"], 2**31, "max_batch_size is 2147483648"),
        (
            ["build_config", "plugin_config", "remove_input_padding"],
            "enable",
            "build_config.plugin_config.remove_input_padding is 'enable', must be true",
        ),
    ],
)
def test_a_malformed_field_is_named(
    tmp_path: Path, path: list[str], value: object, message: str
) -> None:
    """With its path, what it is and what it must be."""
    config: Any = engine_config(HF_CONFIG, INSTALLED)
    place = config
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    if value is ...:
        del place[path[-1]]
    with pytest.raises(CheckpointError, match=message):
        read_engine_config(written(tmp_path, config))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """An engine without its config.json is no engine that can be checked."""
    with pytest.raises(CheckpointError, match=r"has no config\.json, which"):
        read_engine_config(tmp_path)


def test_layers_of_several_head_counts_are_refused(tmp_path: Path) -> None:
    """One pool holds cells of one size; equal counts by layer are none of it."""
    config = engine_config(HF_CONFIG, INSTALLED)
    config["pretrained_config"]["num_kv_heads_per_layer"] = [2, 2, 2]
    assert read_engine_config(written(tmp_path, config)).num_kv_heads == 2
    config["pretrained_config"]["num_kv_heads_per_layer"] = [2, 4, 2]
    with pytest.raises(UnsupportedFeature, match=r"per_layer is \[2, 4, 2\]"):
        read_engine_config(written(tmp_path, config))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=4,
)


def leaves(content: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Every field of nested objects: (object, key)."""
    found = []
    for key, value in content.items():
        found.append((content, key))
        if isinstance(value, dict):
            found += leaves(value)
    return found


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_no_config_brings_a_foreign_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any field may hold anything or be gone: it is read, or refused by our errors."""
    config = engine_config(HF_CONFIG, INSTALLED)
    for _ in range(data.draw(st.integers(1, 3))):
        place, key = data.draw(st.sampled_from(leaves(config)))
        if data.draw(st.booleans()):
            place[key] = data.draw(JSON)
        else:
            place.pop(key)
    folder = written(tmp_path_factory.mktemp("engine"), config)
    try:
        check_engine(read_engine_config(folder), ASKED)
    except (CheckpointError, UnsupportedFeature, ConfigError) as error:
        told = str(error)
    else:
        told = str(folder)
    assert str(folder) in told


@pytest.mark.parametrize(
    ("version", "runs"),
    [
        ("0.20.0", True),
        ("1.2.1", True),
        ("1.2.1+cu12", True),
        ("1.3.0rc1", True),
        ("1.3.0rc20", True),
        ("1.3.0rc21", False),
        ("1.3.0", False),
        ("1.3.1", False),
        ("1.3.1rc5", False),
        ("1.4.0rc1", False),
        ("2.0.0", False),
        ("unknown", False),
    ],
)
def test_which_versions_run_engines(version: str, runs: bool) -> None:
    """The last is the twentieth candidate of 1.3.0."""
    assert runs_engines(version) is runs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "MistralForCausalLM"}, "it is a 'MistralForCausalLM'; only"),
        ({"num_ranks": 2}, "built for 2 GPUs.*--tp_size 1 --pp_size 1"),
        ({"is_paged": False}, "trtllm-build --kv_cache_type paged"),
        ({"has_attention_plugin": False}, "--gpt_attention_plugin auto"),
        ({"removes_input_padding": False}, "--remove_input_padding enable"),
        ({"reads_cached_context": False}, "--use_paged_context_fmha enable"),
        ({"has_multiple_profiles": True}, "--multiple_profiles disable"),
        ({"max_draft_len": 4}, "up to 4 draft tokens.*without --speculative_d"),
        ({"max_beam_width": 2}, "searches 2 beams.*--max_beam_width 1"),
        ({"kv_quantization": "NVFP4"}, "KV cache is 'NVFP4', must be one of FP8, INT8"),
    ],
)
def test_an_engine_that_cannot_be_run_is_refused(
    engine: BuiltEngine, change: dict[str, Any], message: str
) -> None:
    """By what is wrong and the flag to build it anew with."""
    with pytest.raises(UnsupportedFeature, match=message):
        check_engine(replace(engine, **change), ASKED)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 64}, "block_size is 64.*block_size=32.*--tokens_per_block 64"),
        ({"dtype": "float16"}, "dtype is 'float16', it computes in float32"),
        ({"max_num_seqs": 257}, "max_num_seqs=256.*--max_batch_size 257"),
        ({"max_model_len": 513}, "max_model_len=512.*--max_seq_len 513"),
        (
            {"options": {"kv_dtype": "int8"}},
            "kv_dtype is 'int8', an engine keeps fl",
        ),
        ({"options": {"attention": "torch"}}, "attention is 'torch'"),
        ({"options": {"kv_scale": 0.5}}, "kv_scale is 0.5, an engine keeps its own"),
    ],
)
def test_an_option_that_it_was_not_built_for_is_refused(
    engine: BuiltEngine, change: dict[str, Any], message: str
) -> None:
    """By the option's value, the value that would do, and how to build it anew."""
    with pytest.raises(ConfigError, match=message):
        check_engine(engine, replace(ASKED, **change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 8}, "blocks of 8 tokens.*16, 32, 64, 128: build it anew"),
        ({"max_num_tokens": 16}, "steps hold 16 tokens.*block of 32.*--max_num_tokens"),
    ],
)
def test_a_build_that_no_option_fits_is_refused(
    engine: BuiltEngine, change: dict[str, Any], message: str
) -> None:
    """There is nothing to choose but another build."""
    with pytest.raises(ConfigError, match=message):
        check_engine(replace(engine, **change), ASKED)


def test_what_it_was_built_for_is_taken(engine: BuiltEngine) -> None:
    """Limits are inclusive; options that say what is compiled in are no conflict."""
    most = replace(ASKED, max_num_seqs=256, max_model_len=512)
    check_engine(engine, most)
    check_version(replace(engine, version="1.2.1+cu12"), INSTALLED)
    eight_bit = replace(engine, kv_quantization="FP8")
    named = replace(ASKED, options={"kv_dtype": "float8_e4m3fn", "attention": "auto"})
    check_engine(eight_bit, named)


def test_another_version_than_the_builders_is_refused(engine: BuiltEngine) -> None:
    """An engine runs on what built it alone."""
    with pytest.raises(UnsupportedFeature, match=r"built by tensorrt_llm 1.1.0, 1.2.1"):
        check_version(replace(engine, version="1.1.0"), INSTALLED)


def test_a_version_without_engines_is_refused(engine: BuiltEngine) -> None:
    """Even where it built the engine, as it cannot have."""
    with pytest.raises(UnsupportedFeature, match=r"runs no TensorRT engines; 1\.3"):
        check_version(replace(engine, version="1.4.0rc1"), "1.4.0rc1")


def test_float32_is_refused_on_a_gpu(engine: BuiltEngine) -> None:
    """TensorRT-LLM's unfused attention, all there is for it, ignores cached blocks."""
    with pytest.raises(UnsupportedFeature, match="no fused attention"):
        check_engine(engine, replace(ASKED, device="cuda"))
