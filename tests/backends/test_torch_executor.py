"""The torch executor gives transformers' own tokens, however its work is cut up."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from hybrid.scheduler import ConfigError, SamplingParams, UnsupportedFeature
from tests.backends.engine_stand import (
    EXTRA,
    Loaded,
    ids_of,
    load_torch,
    reference,
    run,
    write_model,
)

NUM_TOKENS = 20
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
KINDS = tuple(EXTRA)
BLOCK_SIZES = (16, 32, 64)
CHUNKS = (1, 7, 16, 17, None)


def _prompts() -> list[list[int]]:
    """Lengths around block and chunk borders; the last three share a beginning."""
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, 320, n).tolist() for n in (1, 5, 16, 17, 33, 64)]
    shared = rng.integers(0, 320, 48).tolist()
    return [*prompts, shared, [*shared, 7, 8], [*shared[:40], 3]]


PROMPTS = _prompts()


@pytest.fixture(scope="module")
def models(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Callable[[str, int], Loaded], Callable[[str], list[list[int]]]]:
    """Loaded executors and expected answers, made when first asked for."""

    @cache
    def folder(kind: str) -> Path:
        return write_model(tmp_path_factory.mktemp(kind), kind)

    @cache
    def loaded(kind: str, block_size: int) -> Loaded:
        return load_torch(folder(kind), block_size)

    @cache
    def expected(kind: str) -> list[list[int]]:
        return reference(folder(kind), PROMPTS, NUM_TOKENS)

    return loaded, expected


Models = tuple[Callable[[str, int], Loaded], Callable[[str], list[list[int]]]]


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_mixed_batch_gives_transformers_tokens(
    models: Models, kind: str, block_size: int, chunk: int | None
) -> None:
    """Chunks of prompts run beside decode tokens; cold and with a warm prefix cache."""
    loaded, expected = models
    engine = loaded(kind, block_size).engine(max_prefill_chunk_tokens=chunk)
    assert ids_of(run(engine, PROMPTS, PARAMS)) == expected(kind)
    warm = run(engine, PROMPTS, PARAMS)
    assert ids_of(warm) == expected(kind)
    if block_size < len(PROMPTS[6]):
        assert warm[6].metrics.num_cached_tokens >= block_size


@pytest.mark.parametrize("kind", KINDS)
def test_one_prompt_alone_gives_the_same_tokens(models: Models, kind: str) -> None:
    """No answer depends on what shares the batch."""
    loaded, expected = models
    engine = loaded(kind, 16).engine(enable_prefix_caching=False)
    alone = [ids_of(run(engine, [prompt], PARAMS))[0] for prompt in PROMPTS]
    assert alone == expected(kind)


@pytest.mark.parametrize("chunk", [7, None])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_preempted_requests_give_the_same_tokens(
    models: Models, kind: str, chunk: int | None, *, caching: bool
) -> None:
    """A pool that cannot hold all at once only costs time."""
    loaded, expected = models
    engine = loaded(kind, 16).engine(
        num_blocks=9, max_prefill_chunk_tokens=chunk, enable_prefix_caching=caching
    )
    assert ids_of(run(engine, PROMPTS, PARAMS)) == expected(kind)
    assert engine.stats().preemptions_total > 0


@pytest.mark.parametrize("kv_order", ["layer_first", "block_first"])
def test_both_physical_orders_give_the_same_tokens(
    models: Models, tmp_path: Path, kv_order: str
) -> None:
    """The pool's order is invisible in the answers."""
    _, expected = models
    loaded = load_torch(write_model(tmp_path, "llama"), 16, kv_order=kv_order)
    assert ids_of(run(loaded.engine(), PROMPTS, PARAMS)) == expected("llama")


def test_samples_share_a_prompt_and_part_without_harm(models: Models) -> None:
    """Greedy samples of a forked prompt all equal the answer of one."""
    loaded, expected = models
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, n=3)
    engine = loaded("llama", 16).engine()
    for output, ids in zip(
        run(engine, PROMPTS, params), expected("llama"), strict=True
    ):
        assert [list(sample.token_ids) for sample in output.outputs] == [ids] * 3


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_cuda_gives_the_same_tokens(models: Models, tmp_path: Path, kind: str) -> None:
    """The same code on a GPU: chunks, decode, prefix reuse and preemption."""
    _, expected = models
    loaded = load_torch(write_model(tmp_path, kind), 16, device="cuda")
    engine = loaded.engine(num_blocks=9, max_prefill_chunk_tokens=7)
    assert ids_of(run(engine, PROMPTS, PARAMS)) == expected(kind)
    assert engine.stats().preemptions_total > 0


@pytest.mark.parametrize("kind", ["mamba", "bloom", "gpt_oss"])
def test_a_model_that_paging_would_break_is_refused(tmp_path: Path, kind: str) -> None:
    """Recurrent state, position biases and sinks are named, never ignored."""
    with pytest.raises(UnsupportedFeature, match="executor torch"):
        load_torch(write_refused(tmp_path, kind), 16)


def write_refused(folder: Path, kind: str) -> Path:
    """Save a small model of a family that keeps more than K and V."""
    import transformers  # noqa: PLC0415 - only here

    sizes = {
        "mamba": {"num_hidden_layers": 2, "hidden_size": 32, "state_size": 4},
        "bloom": {"n_layer": 2, "hidden_size": 32, "n_head": 4},
        "gpt_oss": {
            "num_hidden_layers": 2,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
        },
    }
    config = transformers.AutoConfig.for_model(kind, vocab_size=320, **sizes[kind])
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def test_an_unknown_option_or_order_is_refused_by_name(tmp_path: Path) -> None:
    """The messages say what there is."""
    folder = write_model(tmp_path, "llama")
    with pytest.raises(ConfigError, match="unknown option 'kv_ordr'"):
        load_torch(folder, 16, kv_ordr="layer_first")
    with pytest.raises(ConfigError, match="must be layer_first or block_first"):
        load_torch(folder, 16, kv_order="token_first")
