"""From outputs that repeat themselves to ``ModelInferResponse`` messages."""

from collections.abc import Iterator
from typing import Any, Final

from hybrid.outputs import CompletionOutput, RequestOutput

from .kserve_messages import MESSAGES
from .kserve_request import OUTPUTS, VERSION, InferRequest
from .kserve_tensors import TensorValue, write_output

FINAL: Final = "triton_final_response"
"""Parameter of a streamed response: whether it is the last of its request."""


class InferAnswer:
    """The responses of one request, as its answer grows."""

    def __init__(self, request: Any, parsed: InferRequest) -> None:
        """``request`` is the ``ModelInferRequest`` that was parsed."""
        self._request: Final = request
        self._parsed: Final = parsed
        self._sent: Final = [""] * parsed.params.n
        """Texts, by sample."""

    def whole(self, output: RequestOutput) -> Any:
        """Make the one response of a request that has ended.

        Raises:
            SamplingFailed: it ended by an error.
        """
        output.raise_if_failed()
        return self._response(output, [sample.text for sample in output.outputs])

    def pieces(self, output: RequestOutput) -> Iterator[Any]:
        """Make what a streamed answer is told of an output: one response, or none.

        Raises:
            SamplingFailed: the request ended by an error.
        """
        if not output.finished and not self._parsed.stream:
            return
        output.raise_if_failed()
        texts = [sample.text for sample in output.outputs]
        news = [
            text[len(sent) :] for text, sent in zip(texts, self._sent, strict=False)
        ]
        if any(news) or output.finished:
            self._sent[: len(texts)] = texts
            response = self._response(output, news)
            response.parameters[FINAL].bool_param = output.finished
            yield response

    def _response(self, output: RequestOutput, texts: list[str]) -> Any:
        values: dict[str, list[TensorValue]] = {
            "text_output": list(texts),
            "finish_reason": [_reason(sample) for sample in output.outputs],
            "num_input_tokens": [len(output.prompt_token_ids)] * len(texts),
            "num_output_tokens": [len(sample.token_ids) for sample in output.outputs],
        }
        response = MESSAGES["ModelInferResponse"](
            model_name=self._request.model_name,
            model_version=VERSION,
            id=self._request.id,
        )
        for name in self._parsed.outputs:
            write_output(response, name, OUTPUTS[name], values[name])
        return response


def _reason(sample: CompletionOutput) -> str:
    """Empty while the answer goes on."""
    return "" if sample.finish_reason is None else sample.finish_reason.value
