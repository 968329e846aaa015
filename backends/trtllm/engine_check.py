"""Refuses a compiled engine that cannot run as asked, before anything is started.

What is compiled in cannot be changed, so each refusal names the option to change or the
flag of ``trtllm-build`` to build it anew with.
"""

import re
from collections.abc import Iterator
from typing import Final

from hybrid.backends.interface import ExecutorConfig
from hybrid.scheduler.errors import ConfigError, UnsupportedFeature
from hybrid.scheduler.shown_value import shown

from .engine_config import BuiltEngine

FULL_ATTENTION: Final = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Models whose every layer sees all tokens. Of others a caller must tell the engine the
windows, and its config.json does not hold them."""
BLOCK_SIZES: Final = (32, 16, 64, 128)
"""Tokens per block that the executor takes, the preferred first."""
LAST_CANDIDATE: Final = 20
"""1.3.0rc20 is the last TensorRT-LLM that runs engines."""
AUTO: Final = {"attention": "auto", "kv_dtype": "auto", "kv_scale": 1.0}
"""Options of the executor that an engine leaves no choice in, as nobody set them."""
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?")


def runs_engines(version: str) -> bool:
    """Whether a TensorRT-LLM has the engine route: 1.2 and older, 1.3.0rc1 to rc20.

    Source: https://github.com/NVIDIA/TensorRT-LLM/releases/tag/v1.3.0rc20.
    """
    match = _VERSION.match(version)
    if match is None:
        return False
    major, minor, patch = (int(part) for part in match.groups()[:3])
    if (major, minor) < (1, 3):
        return True
    candidate = match[4]
    is_candidate = (major, minor, patch) == (1, 3, 0) and candidate is not None
    return is_candidate and int(candidate) <= LAST_CANDIDATE


def check_version(engine: BuiltEngine, installed: str) -> None:
    """Hold an engine against the TensorRT-LLM that is here.

    Args:
        engine: as its config.json says.
        installed: the package's version.

    Raises:
        UnsupportedFeature: it runs no engines, or not this one.
    """
    if not runs_engines(installed):
        raise UnsupportedFeature(
            f"{engine.path}: tensorrt_llm {installed} is here, which runs no TensorRT "
            f"engines; 1.3.0rc{LAST_CANDIDATE} is the last that does"
        )
    if _release(engine.version) != _release(installed):
        raise UnsupportedFeature(
            f"{engine.path}: it was built by tensorrt_llm {engine.version}, "
            f"{installed} is here, and an engine runs on its builder alone: build it "
            "anew, or install that version"
        )


def check_engine(engine: BuiltEngine, config: ExecutorConfig) -> None:
    """Hold an engine against what is asked of it; needs neither package nor GPU.

    Args:
        engine: as its config.json says.
        config: of the executor.

    Raises:
        UnsupportedFeature: it cannot be run by this executor.
        ConfigError: an option is not what it was built for.
    """
    for problem in _impossible(engine):
        raise UnsupportedFeature(f"{engine.path}: {problem}")
    if engine.dtype == "float32" and config.device != "cpu":
        # Those that it falls back to ignore what is cached.
        raise UnsupportedFeature(
            f"{engine.path}: it computes in float32, for which TensorRT-LLM has no "
            "fused attention: convert the checkpoint with --dtype bfloat16"
        )
    for problem in _mismatches(engine, config):
        raise ConfigError(f"{engine.path}: {problem}")


def _impossible(engine: BuiltEngine) -> Iterator[str]:
    if engine.architecture not in FULL_ATTENTION:
        known = ", ".join(FULL_ATTENTION)
        yield (
            f"it is a {shown(engine.architecture)}; only of {known} it is known that "
            "every layer sees all tokens, and an engine does not say"
        )
    if engine.num_ranks > 1:
        yield (
            f"it was built for {engine.num_ranks} GPUs, this executor drives one: "
            "convert the checkpoint with --tp_size 1 --pp_size 1"
        )
    yield from _wrong_builds(engine)


def _wrong_builds(engine: BuiltEngine) -> Iterator[str]:
    needs = (
        (engine.is_paged, "its KV cache is not paged", "--kv_cache_type paged"),
        (
            engine.has_attention_plugin,
            "it attends without TensorRT-LLM's plugin",
            "--gpt_attention_plugin auto",
        ),
        (
            engine.removes_input_padding,
            "it takes padded batches",
            "--remove_input_padding enable",
        ),
        (
            engine.reads_cached_context,
            "its prompts cannot attend to cached blocks",
            "--context_fmha enable --use_paged_context_fmha enable",
        ),
        (
            not engine.has_multiple_profiles,
            "it has several optimisation profiles",
            "--multiple_profiles disable",
        ),
        (
            engine.max_draft_len == 0,
            f"it verifies up to {engine.max_draft_len} draft tokens",
            "without --speculative_decoding_mode",
        ),
        (
            engine.max_beam_width == 1,
            f"it searches {engine.max_beam_width} beams",
            "--max_beam_width 1",
        ),
    )
    for is_met, problem, flag in needs:
        if not is_met:
            yield f"{problem}: build it anew with trtllm-build {flag}"


def _mismatches(engine: BuiltEngine, config: ExecutorConfig) -> Iterator[str]:
    yield from _unusable_sizes(engine)
    if config.block_size != engine.block_size:
        yield (
            f"block_size is {config.block_size}, it was built for "
            f"{engine.block_size}: block_size={engine.block_size}, or build it anew "
            f"with trtllm-build --tokens_per_block {config.block_size}"
        )
    if config.dtype != engine.dtype:
        yield (
            f"dtype is {shown(config.dtype)}, it computes in {engine.dtype}: "
            f"dtype={engine.dtype!r}, or convert the checkpoint with --dtype "
            f"{config.dtype}"
        )
    # What the options choose for other models is compiled into this one.
    own = {"attention": "its own", "kv_dtype": engine.kv_dtype, "kv_scale": "its own"}
    for option, value in own.items():
        asked = config.options.get(option, AUTO[option])
        if asked not in (AUTO[option], value):
            yield f"{option} is {shown(asked)}, an engine keeps {value}: leave it out"
    limits = (
        ("max_num_seqs", config.max_num_seqs, engine.max_batch_size, "max_batch_size"),
        ("max_model_len", config.max_model_len, engine.max_seq_len, "max_seq_len"),
    )
    for option, asked, limit, flag in limits:
        if asked is not None and asked > limit:
            yield (
                f"{option} is {asked}, it was built for {limit}: {option}={limit}, or "
                f"build it anew with trtllm-build --{flag} {asked}"
            )


def _unusable_sizes(engine: BuiltEngine) -> Iterator[str]:
    if engine.block_size not in BLOCK_SIZES:
        known = ", ".join(map(str, sorted(BLOCK_SIZES)))
        yield (
            f"it was built for blocks of {engine.block_size} tokens, this executor has "
            f"{known}: build it anew with trtllm-build --tokens_per_block 32"
        )
    if engine.max_num_tokens < engine.block_size:
        yield (
            f"its steps hold {engine.max_num_tokens} tokens, fewer than a block of "
            f"{engine.block_size}: build it anew with trtllm-build --max_num_tokens "
            "2048"
        )


def _release(version: str) -> str:
    """A version without what names a build of it (``+cu12``)."""
    return version.partition("+")[0]
