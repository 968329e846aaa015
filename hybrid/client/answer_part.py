"""What a client's caller gets of an answer."""

from collections.abc import Mapping
from dataclasses import dataclass

from hybrid.scheduler import FinishReason


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """What the model thought of one position."""

    token_id: int
    """The id that stands there."""
    logprob: float
    """Natural logarithm of its probability under the raw logits."""
    top_logprobs: Mapping[int, float]
    """Likeliest ids first, as many as were asked for."""


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """Part of one sample's answer: what is new in a stream, else all of it."""

    index: int
    """Of the sample, below ``n``."""
    text: str
    """In a stream it may come after the ids that it belongs to: what may become a
    stop string, or is half a character, is held back."""
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    """One entry per token id, if asked for."""
    finish_reason: FinishReason | None
    """Set in a sample's last part, and in no other."""
    stop_reason: int | str | None
    """The stop string or stop token id that ended it; ``None``: the model's own end."""
    num_prompt_tokens: int
    num_cached_tokens: int
    """Prompt tokens that the server found in its prefix cache."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None
    """One entry per prompt token, the first ``None``; in a sample's first part, if
    asked for."""
