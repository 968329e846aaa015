"""A request's logits are the same to the last bit in whatever company it runs."""

from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from hybrid.testing import write_tiny_model
from tests.backends.cpu_stand import load_cpu, logits_in_company

NUM_TOKENS = 90
VOCAB_SIZE = 331
CUTS = {
    "one by one": [1] * NUM_TOKENS,
    "by sevens": [7] * 12 + [6],
    "as a server does": [64, 17, *[1] * 9],
    "unevenly": [3, 40, 1, 1, 33, 12],
}
KINDS: dict[str, dict[str, Any]] = {
    "fp32": {"quantization": "fp32"},
    "bf16": {"quantization": "bf16"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4", "batch_invariant": "yes"},
    "int8 over an int8 cache": {"quantization": "int8", "kv_cache_dtype": "int8"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose sizes fill no tile of any kernel, with a window."""
    return write_tiny_model(
        tmp_path_factory.mktemp("odd"),
        "mistral",
        hidden_size=72,
        intermediate_size=100,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=20,
        vocab_size=VOCAB_SIZE,
        sliding_window=61,
    )


def _ids(count: int) -> list[int]:
    rng = Random(5)
    return [rng.randrange(VOCAB_SIZE) for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_and_chunks_change_no_bit(folder: Path, kind: str) -> None:
    """Alone in one chunk; cut in several ways; alone and beside others."""
    ids = _ids(NUM_TOKENS)
    loaded = load_cpu(folder, **KINDS[kind])
    with closing(loaded.executor):
        alone = logits_in_company(loaded, ids, [NUM_TOKENS])
        assert np.isfinite(alone).all()
        assert len(np.unique(alone[-1])) > VOCAB_SIZE // 2, "there is nothing to see"
        for number, (name, cuts) in enumerate(CUTS.items()):
            for num_others in (0, 1, 11):
                found = logits_in_company(
                    loaded, ids, cuts, num_others=num_others, seed=number
                )
                assert np.array_equal(found, alone), f"{name}, beside {num_others}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_threads_changes_no_bit(folder: Path, kind: str) -> None:
    """One thread computes what seven do."""
    ids, found = _ids(NUM_TOKENS), []
    for num_threads in (1, 2, 7):
        loaded = load_cpu(folder, num_threads=num_threads, **KINDS[kind])
        with closing(loaded.executor):
            found.append(
                logits_in_company(loaded, ids, [80, *[1] * 10], num_others=3, seed=1)
            )
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


@pytest.mark.parametrize("quantization", ["fp32", "int8"])
def test_a_long_context_is_summed_as_its_position_says(
    tmp_path: Path, quantization: str
) -> None:
    """Where attention is split into parts, and a step into passes, too."""
    count = 1100
    folder = write_tiny_model(tmp_path, "llama", max_position_embeddings=2048)
    ids = [token_id % 320 for token_id in _ids(count)]
    loaded = load_cpu(folder, quantization=quantization)
    with closing(loaded.executor):
        alone = logits_in_company(loaded, ids, [count])
        ways = ([512, 512, 76], [700, *[1] * 400], [255, 255, 590])
        for seed, cuts in enumerate(ways):
            found = logits_in_company(loaded, ids, cuts, num_others=2, seed=seed)
            assert np.array_equal(found, alone), str(cuts[:3])
