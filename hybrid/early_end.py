"""How an answer looks that is ended before the engine has taken notice of it."""

from dataclasses import replace

from hybrid.scheduler import FinishReason, GenerateRequest

from .outputs import RequestOutput
from .request_state import RequestState, SampleState


def unanswered(request: GenerateRequest, text: str | None) -> RequestOutput:
    """An answer that has not begun.

    Args:
        request: on its way into the engine.
        text: the prompt's, if it came as text.
    """
    state = RequestState(request, text, stream=True, samples=[SampleState(0, None)])
    return state.output(request.arrival_time_s)


def aborted(output: RequestOutput) -> RequestOutput:
    """The same answers, those that go on ended as aborted.

    Text that was held back, since it may become a stop string, stays so.
    """
    samples = tuple(
        sample
        if sample.finish_reason is not None
        else replace(sample, finish_reason=FinishReason.ABORT)
        for sample in output.outputs
    )
    return replace(output, outputs=samples, finished=True)
