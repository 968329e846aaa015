"""Scores of a text: transformers' own loss, whatever the windows and the batch."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import transformers

from hybrid import LLM, InvalidRequest
from hybrid.bench import TextScore, score_text
from tests.backends.tiny_checkpoints import make_model

IDS = np.random.default_rng(7).integers(3, 300, 100).tolist()


@pytest.fixture(scope="module")
def model() -> transformers.PreTrainedModel:
    """A tiny random model."""
    return make_model("llama")


@pytest.fixture(scope="module")
def llm(
    model: transformers.PreTrainedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LLM]:
    """The same model in the engine; its context is 128 tokens."""
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    with LLM(
        str(folder),
        executor="torch",
        dtype="float32",
        skip_tokenizer_init=True,
        num_kv_blocks=32,
        max_num_batched_tokens=48,
    ) as engine:
        yield engine


@pytest.mark.parametrize("window", [100, 64, 33])
def test_perplexity_is_that_of_transformers(
    llm: LLM, model: transformers.PreTrainedModel, window: int
) -> None:
    """Its loss over each window, and the id that it holds likeliest in each place."""
    losses: list[float] = []
    likeliest: list[int] = []
    for start in range(0, len(IDS), window):
        ids = torch.tensor([IDS[start : start + window]])
        if ids.numel() > 1:
            with torch.inference_mode():
                answer = model(input_ids=ids, labels=ids)
            losses += [answer.loss.item()] * (ids.numel() - 1)
            likeliest += answer.logits[0, :-1].argmax(-1).tolist()
    score = score_text(llm, IDS, window_tokens=window)
    assert len(score.logprobs) == len(losses)
    assert score.perplexity == pytest.approx(math.exp(np.mean(losses)), rel=1e-4)
    assert list(score.top_ids) == likeliest


def test_a_score_repeats(llm: LLM) -> None:
    """A prompt that the prefix cache knows is scored as before."""
    assert score_text(llm, IDS).logprobs == pytest.approx(score_text(llm, IDS).logprobs)


def test_perplexity_of_known_probabilities() -> None:
    """Sure of everything is 1; one in eight and one in two, 4."""
    assert TextScore((0.0, 0.0), (1, 2)).perplexity == 1.0
    score = TextScore((math.log(1 / 8), math.log(1 / 2)), (1, 2))
    assert score.perplexity == pytest.approx(4.0)


def test_agreement_is_a_share_of_places() -> None:
    """Three places of four alike; scores of different texts have none."""
    score = TextScore((0.0,) * 4, (1, 2, 3, 4))
    assert score.agreement(TextScore((0.0,) * 4, (1, 2, 9, 4))) == 0.75
    with pytest.raises(ValueError, match="zip"):
        score.agreement(TextScore((0.0,), (1,)))


@pytest.mark.parametrize(
    ("text", "window", "field"),
    [
        ([5], 512, "text"),
        ([], 512, "text"),
        ("words", 512, "text"),
        (IDS, 1, "window_tokens"),
    ],
)
def test_what_cannot_be_scored_is_refused(
    llm: LLM, text: str | list[int], window: int, field: str
) -> None:
    """One token predicts nothing, and a text needs a tokenizer."""
    with pytest.raises(InvalidRequest) as caught:
        score_text(llm, text, window_tokens=window)
    assert caught.value.field == field
