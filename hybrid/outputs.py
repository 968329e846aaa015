"""What a caller gets back; names and meaning follow vLLM 0.32 (``vllm/outputs.py``)."""

from collections.abc import Mapping
from dataclasses import dataclass

from hybrid.scheduler import FinishReason, FormFailed, SamplingFailed


@dataclass(frozen=True, slots=True)
class Logprob:
    """One candidate at one position."""

    logprob: float
    """Natural logarithm of its probability under the raw logits."""
    rank: int
    """1 for the likeliest id."""
    decoded_token: str | None
    """Its text alone, ``None`` without a tokenizer; bytes that are no whole character
    show as U+FFFD."""


PositionLogprobs = Mapping[int, Logprob]
"""Token id to its log-probability: the k likeliest and the one that stands there."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One sample's answer so far."""

    index: int
    text: str
    """Without held-back text that may yet become a stop string."""
    token_ids: tuple[int, ...]
    """Ids drawn, the one that ended the answer included. A stop string may end in the
    middle of the last one's text."""
    cumulative_logprob: float | None
    """Sum over ``token_ids``; ``None`` unless log-probabilities were asked for."""
    logprobs: tuple[PositionLogprobs, ...] | None
    """One entry per token id."""
    finish_reason: FinishReason | None = None
    """``stop``, ``length``, ``abort`` or ``error``; ``None`` while it goes on."""
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended it; ``None``: the model's own end."""


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Where one request's time went; seconds."""

    queue_s: float | None
    """From arrival to the first step that ran some of it."""
    ttft_s: float | None
    """From arrival to the first token of any sample."""
    total_s: float
    """From arrival to now, or to the end."""
    num_prompt_tokens: int
    num_output_tokens: int
    """Over all samples."""
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache when it was first scheduled."""
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request's answers so far: each output repeats what earlier ones said."""

    request_id: str
    prompt: str | None
    """As given; ``None`` when ids were given."""
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None
    """One entry per prompt token, the first ``None``; if asked for."""
    outputs: tuple[CompletionOutput, ...]
    """By ``index``; until the prompt is computed only the first exists."""
    finished: bool
    metrics: RequestMetrics
    error: str | None = None
    """Where a finish reason is ``error``: what went wrong, and with which executor."""
    is_form_failure: bool = False
    """Whether ``error`` is that the answer could not go on in the form asked for."""

    def raise_if_failed(self) -> None:
        """Raise ``error``, if there is one.

        Raises:
            FormFailed: the answer could not go on in the form asked for.
            SamplingFailed: anything else ended the request.
        """
        if self.error is not None:
            kind = FormFailed if self.is_form_failure else SamplingFailed
            raise kind(self.error, request_id=self.request_id)
