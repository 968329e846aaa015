"""What quantisation costs a real model, on a text of the repository."""

from pathlib import Path
from typing import Final

import pytest

from hybrid import LLM
from hybrid.backends.cpu.native_library import NativeUnavailable, load_library
from hybrid.bench import TextScore, score_text

pytestmark = pytest.mark.model

TEXT: Final = Path(__file__).parents[1] / "data" / "reading.txt"
NUM_CHARACTERS: Final = 4_400
"""About a thousand tokens: as many as there is time for."""


def _has_kernels() -> bool:
    try:
        load_library()
    except NativeUnavailable:
        return False
    return True


def _score(executor: str, dtype: str, **options: str) -> TextScore:
    with LLM(
        "smollm2-135m",
        executor=executor,
        executor_options=options,
        dtype=dtype,
        num_kv_blocks=100,
    ) as llm:
        return score_text(llm, TEXT.read_text("utf-8")[:NUM_CHARACTERS])


@pytest.fixture(scope="module")
def exact() -> TextScore:
    """The model in float32, by the torch executor."""
    return _score("torch", "float32")


def test_the_text_is_predictable(exact: TextScore) -> None:
    """English prose: far from guessing among 49,152 ids, and not known by heart."""
    assert len(exact.logprobs) > 900
    assert 10 < exact.perplexity < 50


@pytest.mark.skipif(not _has_kernels(), reason="the CPU kernels were not compiled")
@pytest.mark.parametrize(
    ("quantization", "dtype", "most_worse", "least_agreement"),
    [
        ("fp32", "float32", 1e-4, 0.999),
        ("int8", "bfloat16", 0.01, 0.90),
        ("int4", "bfloat16", 0.03, 0.90),
    ],
)
def test_quantisation_costs_little(
    exact: TextScore,
    quantization: str,
    dtype: str,
    most_worse: float,
    least_agreement: float,
) -> None:
    """Perplexity rises by a share at most; the likeliest token is mostly the same."""
    found = _score("cpu", dtype, quantization=quantization, implementation="native")
    assert found.perplexity < exact.perplexity * (1 + most_worse)
    assert found.agreement(exact) >= least_agreement
