"""How well a model, as an engine runs it, predicts a text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybrid.outputs import PositionLogprobs
from hybrid.scheduler.errors import InvalidRequest
from hybrid.scheduler.sampling_params import SamplingParams

if TYPE_CHECKING:
    from hybrid.llm import LLM


@dataclass(frozen=True, slots=True)
class TextScore:
    """One text's tokens under one engine."""

    logprobs: tuple[float, ...]
    """Natural logarithm of each token's probability; the first of a window has none."""
    top_ids: tuple[int, ...]
    """The id that the engine held likeliest in each one's place."""

    @property
    def perplexity(self) -> float:
        """Exponential of the mean negative logarithm; 1 is foresight."""
        return math.exp(-math.fsum(self.logprobs) / len(self.logprobs))

    def agreement(self, other: "TextScore") -> float:
        """Share of the places in which both hold the same id likeliest, 0 to 1."""
        pairs = zip(self.top_ids, other.top_ids, strict=True)
        return sum(ours == theirs for ours, theirs in pairs) / len(self.top_ids)


def score_text(
    llm: "LLM", text: str | Sequence[int], *, window_tokens: int = 512
) -> TextScore:
    """Score a text, in windows that know nothing of each other.

    Args:
        llm: an engine whose executor gives ``prompt_logprobs``; its prefix cache, if it
            has one, is not read for these.
        text: a text for its tokenizer, or token ids.
        window_tokens: tokens of a window, at most the engine's context less one; a
            last window of one token is left out.

    Raises:
        InvalidRequest: the text has fewer than two tokens, there is no tokenizer, or
            the window is shorter than two.
        UnsupportedFeature: the executor gives no ``prompt_logprobs``.
    """
    if window_tokens < 2:
        raise InvalidRequest(
            f"window_tokens is {window_tokens}, must be at least 2",
            field="window_tokens",
            value=window_tokens,
        )
    ids = _ids(llm, text)
    starts = range(0, len(ids) - 1, window_tokens)
    windows = [ids[start : start + window_tokens] for start in starts]
    if not windows:
        raise InvalidRequest(
            f"the text has {len(ids)} tokens, must have at least 2",
            field="text",
            value=len(ids),
        )
    params = SamplingParams(
        temperature=0.0, max_tokens=1, prompt_logprobs=1, detokenize=False
    )
    logprobs: list[float] = []
    top_ids: list[int] = []
    for output in llm.generate(windows, params, use_tqdm=False):
        output.raise_if_failed()
        positions = output.prompt_logprobs or ()
        for token_id, position in zip(output.prompt_token_ids, positions, strict=True):
            if position is not None:
                logprobs.append(position[token_id].logprob)
                top_ids.append(_likeliest(position))
    return TextScore(tuple(logprobs), tuple(top_ids))


def _ids(llm: "LLM", text: str | Sequence[int]) -> list[int]:
    if not isinstance(text, str):
        return list(text)
    tokenizer = llm.llm_engine.tokenizer
    if tokenizer is None:
        raise InvalidRequest(
            "a text needs a tokenizer, and the engine has none",
            field="text",
            value=None,
        )
    return list(tokenizer.encode(text))


def _likeliest(position: PositionLogprobs) -> int:
    return min(position, key=lambda token_id: position[token_id].rank)
