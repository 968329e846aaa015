"""What the engine keeps of a request outside the scheduler: text, times, outputs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hybrid.scheduler import FinishReason, GenerateRequest

from .outputs import (
    CompletionOutput,
    PositionLogprobs,
    RequestMetrics,
    RequestOutput,
)

if TYPE_CHECKING:
    from .tokenizer.output_text import OutputText


@dataclass(slots=True)
class SampleState:
    """One sample's answer as it grows."""

    index: int
    text: "OutputText | None"
    """``None`` without a tokenizer or where no text is wanted."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    cumulative_logprob: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def without_text(self, new_token_ids: Sequence[int] = ()) -> list[int]:
        """The tokens that ``text`` has yet to take in, up to the newest."""
        assert self.text is not None
        return [*self.token_ids[self.text.num_tokens_consumed :], *new_token_ids]

    def output(self) -> CompletionOutput:
        """Freeze the answer so far."""
        logprobs = self.logprobs
        return CompletionOutput(
            index=self.index,
            text="" if self.text is None else self.text.text,
            token_ids=tuple(self.token_ids),
            cumulative_logprob=None if logprobs is None else self.cumulative_logprob,
            logprobs=None if logprobs is None else tuple(logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )


@dataclass(slots=True)
class RequestState:
    """One request from arrival to its last output."""

    request: GenerateRequest
    prompt_text: str | None
    stream: bool
    """Whether every step's output is wanted, or the last alone."""
    defers_text: bool = False
    """Whether text is made at the end: nobody reads it before, no stop string may end
    it."""
    samples: list[SampleState] = field(default_factory=list)
    """By index; grows to ``n`` when the prompt is computed."""
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    scheduled_at_s: float | None = None
    first_token_at_s: float | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    error: str | None = None
    """Why it could not go on."""
    is_form_failure: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether every sample has ended."""
        for sample in self.samples:  # no generator: asked of each request each step
            if sample.finish_reason is None:
                return False
        return len(self.samples) == self.request.sampling_params.n

    def end_all(self, reason: FinishReason) -> None:
        """End the samples that have not ended."""
        for sample in self.samples:
            if sample.finish_reason is None:
                sample.finish_reason = reason
                if sample.text is not None:
                    sample.text.append(sample.without_text(), is_last=True)

    def metrics(self, now_s: float) -> RequestMetrics:
        """Where the time went, on the engine's clock."""
        arrival_s = self.request.arrival_time_s
        scheduled, first = self.scheduled_at_s, self.first_token_at_s
        return RequestMetrics(
            queue_s=None if scheduled is None else scheduled - arrival_s,
            ttft_s=None if first is None else first - arrival_s,
            total_s=now_s - arrival_s,
            num_prompt_tokens=len(self.request.prompt_token_ids),
            num_output_tokens=sum(len(sample.token_ids) for sample in self.samples),
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=self.num_preemptions,
        )

    def output(self, now_s: float, *, is_over: bool = False) -> RequestOutput:
        """Freeze the request so far; ``is_over``: this is its last output."""
        prompt_logprobs = self.prompt_logprobs
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.prompt_text,
            prompt_token_ids=self.request.prompt_token_ids,
            prompt_logprobs=None if prompt_logprobs is None else tuple(prompt_logprobs),
            outputs=tuple(sample.output() for sample in self.samples),
            finished=is_over,
            metrics=self.metrics(now_s),
            error=self.error,
            is_form_failure=self.is_form_failure,
        )
