"""Options against what an executor can do: sizes, capabilities, contract versions."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hybrid import LLM, ConfigError, EngineConfig, SamplingParams, UnsupportedFeature
from hybrid.backends.interface import KVSpec, ModelInfo
from hybrid.backends.null import executor as null_executor
from hybrid.bridge import KVOrder
from hybrid.engine_builder import build_engine
from hybrid.kv_sizing import choose_num_blocks

SPEC = KVSpec(
    num_layers=2,
    num_kv_heads=2,
    head_dim=8,
    dtype="float32",
    order=KVOrder.LAYER_FIRST,
    available_bytes=1 << 20,
)
BLOCK_BYTES = 2 * 2 * 2 * 16 * 8 * 4


def size(device: str = "cpu", spec: KVSpec = SPEC, **options: Any) -> int:
    """Usable blocks under these options."""
    return choose_num_blocks(
        EngineConfig(**options), spec, block_size=16, max_model_len=64, device=device
    )


def test_the_pool_takes_half_of_a_cpus_free_memory_and_most_of_a_gpus() -> None:
    """The null block is paid from the same share."""
    assert size() == (1 << 20) // 2 // BLOCK_BYTES - 1
    assert size("cuda") == int((1 << 20) * 0.9) // BLOCK_BYTES - 1
    assert size(max_num_seqs=3) == 3 * 4


@pytest.mark.parametrize(
    "options", [{"kv_cache_memory": "2MiB"}, {"num_kv_blocks": 10**6}]
)
def test_a_pool_beyond_the_free_memory_is_refused(options: dict[str, Any]) -> None:
    """At start, with the numbers, and not when it fills."""
    with pytest.raises(ConfigError, match="1,048,576 bytes of memory are free"):
        size(**options)


@pytest.mark.parametrize("num_bytes", [0, -5, None, 1e9])
@pytest.mark.parametrize("options", [{}, {"kv_cache_memory": 1}, {"num_kv_blocks": 1}])
def test_an_executor_that_reports_no_free_memory_is_named(
    num_bytes: Any, options: dict[str, Any]
) -> None:
    """No option of the user's could have helped."""
    spec = replace(SPEC, available_bytes=num_bytes)
    with pytest.raises(ConfigError) as caught:
        size(spec=spec, **options)
    text = str(caught.value)
    assert text.startswith(f"the executor reports {num_bytes} bytes free for KV")
    assert "kv_cache_memory" not in text


def test_a_share_that_holds_no_block_blames_no_option() -> None:
    """Nobody gave one; the free memory is named."""
    with pytest.raises(ConfigError) as caught:
        size(spec=replace(SPEC, available_bytes=5000))
    assert str(caught.value) == (
        "a share of 2,500 of the 5,000 bytes free holds no KV block beside the null "
        f"block: one of 16 tokens takes {BLOCK_BYTES:,} bytes"
    )


def with_capabilities(patch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Let the null executor declare something else."""
    changed = replace(null_executor.CAPABILITIES, **changes)
    patch.setattr(null_executor, "CAPABILITIES", changed)


@pytest.mark.parametrize(
    ("option", "capability"),
    [
        ("enable_prefix_caching", "prefix_reuse"),
        ("enable_chunked_prefill", "chunked_prefill"),
    ],
)
def test_a_feature_the_executor_lacks_is_off_and_refused_if_asked_for(
    monkeypatch: pytest.MonkeyPatch, option: str, capability: str
) -> None:
    """By default it is left out; set explicitly, the executor's lack is named."""
    with_capabilities(monkeypatch, **{capability: False})
    with pytest.raises(ConfigError, match=f"{option} is True, which executor null"):
        LLM(executor="null", **{option: True})
    with LLM(executor="null", max_num_seqs=2) as llm:
        prompt = [[5] * 40]
        params = SamplingParams(temperature=0, max_tokens=2)
        llm.generate(prompt, params)
        (again,) = llm.generate(prompt, params)
        expected_hits = 0 if capability == "prefix_reuse" else 32
        assert again.metrics.num_cached_tokens == expected_hits


def test_without_block_copies_samples_still_part_correctly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The capability reaches the scheduler: no plan holds a copy, answers are alike."""
    params = SamplingParams(temperature=1.0, seed=5, n=3, max_tokens=6)
    with LLM(executor="null") as llm:
        (expected,) = llm.generate([[1, 2, 3]], params)
    with_capabilities(monkeypatch, block_copy=False)
    copies = []
    execute = null_executor.NullExecutor.execute

    def watched(self: Any, plan: Any) -> Any:
        copies.extend(plan.block_copies)
        return execute(self, plan)

    monkeypatch.setattr(null_executor.NullExecutor, "execute", watched)
    with LLM(executor="null") as llm:
        (output,) = llm.generate([[1, 2, 3]], params)
    assert not copies
    assert output.outputs == expected.outputs


def test_an_executor_that_samples_itself_refuses_what_it_does_not_honour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is dropped in silence; the fields are named."""
    with_capabilities(
        monkeypatch, returns_logits=False, sampling_fields=("temperature",)
    )
    with LLM(executor="null") as llm:
        with pytest.raises(UnsupportedFeature, match="does not take top_p, logprobs"):
            llm.generate([[1]], SamplingParams(top_p=0.5, logprobs=1))
        with pytest.raises(UnsupportedFeature, match="does not take seed"):
            llm.generate([[1]], SamplingParams(seed=3))


def test_prompt_log_probabilities_are_refused_where_there_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The request is refused by name before it enters; others run."""
    with_capabilities(monkeypatch, prompt_logprobs=False)
    with LLM(executor="null", num_kv_blocks=8) as llm:
        with pytest.raises(UnsupportedFeature, match="null does not take prompt_log"):
            llm.generate([[1, 2]], SamplingParams(prompt_logprobs=1))
        assert llm.generate([[1, 2]], SamplingParams(max_tokens=1, logprobs=1))


def test_a_config_made_by_hand_is_checked_as_well() -> None:
    """``EngineConfig`` itself names unknown options and contradictions."""
    with pytest.raises(ConfigError, match="did you mean 'max_num_seqs'"):
        EngineConfig(max_num_seq=3)
    with pytest.raises(ConfigError, match="give one"):
        EngineConfig(num_kv_blocks=10, kv_cache_memory=10**6)
    with pytest.raises(ConfigError, match="without the method applies_to"):
        EngineConfig(logits_processors=[object()])


def test_a_broken_chat_template_is_refused_at_start(tmp_path: Path) -> None:
    """It is named before the first conversation."""
    from tests.backends.tiny_checkpoints import make_model, write_gguf  # noqa: PLC0415 - torch

    write_gguf(tmp_path / "tiny.gguf", make_model("llama"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYBRID_CACHE", str(tmp_path / "cache"))
        with pytest.raises(ConfigError, match="chat_template"):
            LLM(str(tmp_path / "tiny.gguf"), chat_template="{% for %}", num_threads=1)


def with_token_limit(patch: pytest.MonkeyPatch, limit: int) -> None:
    """Let the null executor's model be made for steps of so many tokens."""
    load = null_executor.NullExecutor.load

    def limited(*args: Any) -> ModelInfo:
        return replace(load(*args), max_num_batched_tokens=limit)

    patch.setattr(null_executor.NullExecutor, "load", limited)


def test_the_budget_keeps_the_models_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller one lowers the default, a larger one changes nothing."""
    for limit, budget in ((100, 100), (5000, 2048)):
        with monkeypatch.context() as patch:
            with_token_limit(patch, limit)
            engine = build_engine(EngineConfig(executor="null", num_kv_blocks=8))
            with closing(engine):
                scheduler: Any = engine.scheduler
        assert scheduler._config.max_num_batched_tokens == budget


def test_a_budget_beyond_the_models_limit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At start, by both numbers; the limit itself is taken."""
    with_token_limit(monkeypatch, 100)
    with LLM(executor="null", num_kv_blocks=8, max_num_batched_tokens=100):
        pass
    with pytest.raises(ConfigError, match=r"tokens is 101, .* was made for 100"):
        LLM(executor="null", num_kv_blocks=8, max_num_batched_tokens=101)
