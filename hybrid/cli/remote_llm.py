"""A server in the place of ``LLM``, as far as the commands use one."""

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from hybrid.outputs import CompletionOutput, RequestMetrics, RequestOutput

if TYPE_CHECKING:
    from hybrid import SamplingParams
    from hybrid.client import AnswerPart, HybridClient


class RemoteLLM:
    """Makes what a server says piece by piece into answers so far."""

    def __init__(self, client: "HybridClient") -> None:
        """Ask what is served, so that a server that is not there is told of at once.

        Raises:
            HybridError: the call fails.
        """
        self._client: Final = client
        self.model_name: Final = client.model_info().name

    def stream(
        self, prompt: str, sampling_params: "SamplingParams"
    ) -> Generator[RequestOutput]:
        """Continue a text, as ``LLM.stream``."""
        parts = self._client.stream(prompt, sampling_params)
        return _follow(parts, prompt, sampling_params.n)

    def stream_chat(
        self, messages: Sequence[Mapping[str, Any]], sampling_params: "SamplingParams"
    ) -> Generator[RequestOutput]:
        """Answer a conversation, as ``LLM.stream_chat``."""
        parts = self._client.stream_chat(messages, sampling_params)
        return _follow(parts, None, sampling_params.n)


def _follow(
    parts: "Generator[AnswerPart]", prompt: str | None, num_samples: int
) -> Generator[RequestOutput]:
    started_s = time.monotonic()
    samples = [
        CompletionOutput(index, "", (), None, None) for index in range(num_samples)
    ]
    with closing(parts):
        for part in parts:
            sample = samples[part.index]
            samples[part.index] = replace(
                sample,
                text=sample.text + part.text,
                token_ids=sample.token_ids + part.token_ids,
                finish_reason=part.finish_reason,
                stop_reason=part.stop_reason,
            )
            yield RequestOutput(
                request_id="",
                prompt=prompt,
                prompt_token_ids=(),
                prompt_logprobs=None,
                outputs=tuple(samples),
                finished=all(sample.finish_reason for sample in samples),
                metrics=_metrics(part, samples, time.monotonic() - started_s),
            )


def _metrics(
    part: "AnswerPart", samples: Sequence[CompletionOutput], total_s: float
) -> RequestMetrics:
    """What is known here: how the server spent its time is not."""
    return RequestMetrics(
        queue_s=None,
        ttft_s=None,
        total_s=total_s,
        num_prompt_tokens=part.num_prompt_tokens,
        num_output_tokens=sum(len(sample.token_ids) for sample in samples),
        num_cached_tokens=part.num_cached_tokens,
        num_preemptions=0,
    )
