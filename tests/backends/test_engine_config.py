"""A compiled engine's own words are read; what it was not built for is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.backends.trtllm.engine_check import (
    check_engine,
)
from hybrid.backends.trtllm.engine_config import BuiltEngine, read_engine_config
from hybrid.scheduler.errors import CheckpointError, ConfigError, UnsupportedFeature
from tests.backends.built_engine_stand import (
    ASKED,
    HF_CONFIG,
    INSTALLED,
    engine,
    written,
)
from tests.backends.standin_engine import engine_config

__all__ = ["engine"]  # pytest finds the fixture here


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
