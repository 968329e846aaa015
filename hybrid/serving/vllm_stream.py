"""From outputs that repeat themselves to messages that do not.

    output: 5       5 8       5 8 13 (stop)
    chunk:  [5]     [8]       [13]
    complete:                 [13]            stream=true: the last delta again
    complete:                 [5, 8, 13]      stream=false: nothing else

An output that was replaced before it was read makes the next delta longer; nothing is
lost. Source: smg-grpc-servicer 0.14.1 (``vllm/servicer.py``).
"""

from collections.abc import Iterator
from typing import Any, Final

from smg_grpc_proto import vllm_engine_pb2 as pb

from hybrid.outputs import CompletionOutput, RequestOutput
from hybrid.scheduler import SamplingParams

from .vllm_logprobs import input_logprobs, output_logprobs


class AnswerMessages:
    """The messages of one request, as its answers grow."""

    def __init__(self, params: SamplingParams, *, stream: bool) -> None:
        self._params: Final = params
        self._stream: Final = stream
        self._num_sent: Final = [0] * params.n
        """Tokens, by index."""
        self._has_ended: Final = [False] * params.n

    def take(self, output: RequestOutput) -> Iterator[Any]:
        """Messages for what is new in an output; ``GenerateResponse`` each.

        Raises:
            SamplingFailed: the request ended by an error.
        """
        output.raise_if_failed()
        if not self._stream and not output.finished:
            return
        for sample in self._samples(output):
            if not self._has_ended[sample.index]:
                yield from self._messages(output, sample)

    def _samples(self, output: RequestOutput) -> Iterator[CompletionOutput]:
        """Every sample, those too that an abort has left without a beginning."""
        yield from output.outputs
        if output.finished:
            reason = output.outputs[0].finish_reason
            for index in range(len(output.outputs), self._params.n):
                yield CompletionOutput(index, "", (), None, None, reason)

    def _messages(
        self, output: RequestOutput, sample: CompletionOutput
    ) -> Iterator[Any]:
        start = self._num_sent[sample.index]
        token_ids = sample.token_ids[start:]
        news = self._news(output, sample, start)
        if self._stream and token_ids:
            prompt = {} if start else self._prompt(output)
            chunk = pb.GenerateStreamChunk(token_ids=token_ids, **news, **prompt)
            yield pb.GenerateResponse(chunk=chunk)
            self._num_sent[sample.index] = len(sample.token_ids)
        if sample.finish_reason is None:
            return
        self._has_ended[sample.index] = True
        complete = pb.GenerateComplete(
            output_ids=token_ids,
            finish_reason=sample.finish_reason.value,
            **news,
            **({} if self._stream else self._prompt(output)),
        )
        if isinstance(sample.stop_reason, str):
            complete.matched_stop_str = sample.stop_reason
        elif sample.stop_reason is not None:
            complete.matched_token_id = sample.stop_reason
        yield pb.GenerateResponse(complete=complete)

    def _news(
        self, output: RequestOutput, sample: CompletionOutput, start: int
    ) -> dict[str, Any]:
        """What chunk and complete have in common, from a token on."""
        token_ids = sample.token_ids[start:]
        news = {
            "index": sample.index,
            "prompt_tokens": len(output.prompt_token_ids),
            "completion_tokens": len(token_ids),
            "cached_tokens": output.metrics.num_cached_tokens,
        }
        num_top = self._params.logprobs
        if num_top is not None and sample.logprobs is not None and token_ids:
            positions = sample.logprobs[start:]
            news["output_logprobs"] = output_logprobs(token_ids, positions, num_top)
        return news

    def _prompt(self, output: RequestOutput) -> dict[str, Any]:
        num_top = self._params.prompt_logprobs
        if num_top is None or output.prompt_logprobs is None:
            return {}
        prompt, positions = output.prompt_token_ids, output.prompt_logprobs
        return {"input_logprobs": input_logprobs(prompt, positions, num_top)}
