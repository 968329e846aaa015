"""What a compiled engine was not built for is refused, with the way out."""

from dataclasses import replace
from typing import Any

import pytest

from hybrid.backends.trtllm.engine_check import (
    check_engine,
    check_version,
    runs_engines,
)
from hybrid.backends.trtllm.engine_config import BuiltEngine
from hybrid.scheduler.errors import ConfigError, UnsupportedFeature
from tests.backends.built_engine_stand import ASKED, INSTALLED, engine

__all__ = ["engine"]  # pytest finds the fixture here


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
