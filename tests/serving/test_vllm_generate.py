"""Generate: what a stream says, piece by piece, and that its pieces add up."""

from typing import Any

from smg_grpc_proto import vllm_engine_pb2 as pb

from hybrid import SamplingParams
from hybrid.testing import ids_of, run
from tests.hybrid.null_stand import make_engine
from tests.serving.service_stand import Served, generate, request, serve

PROMPT = [1, 2, 3, 4, 5]


def answer_to(message: Any, **engine: Any) -> list[Any]:
    """The messages that one request gets from an engine of its own."""

    async def body(served: Served) -> list[Any]:
        return await generate(served, message)

    return serve(make_engine(**engine), body)


def test_without_stream_there_is_one_complete_with_everything() -> None:
    """No chunk; the ids are those of the offline engine, the counts are theirs."""
    params = SamplingParams(temperature=0, max_tokens=8)
    (expected,) = ids_of(run(make_engine(), [PROMPT], params))
    (complete,) = answer_to(request(PROMPT))
    assert isinstance(complete, pb.GenerateComplete)
    assert tuple(complete.output_ids) == tuple(expected)
    assert complete.finish_reason == "length"
    assert complete.prompt_tokens == len(PROMPT)
    assert complete.completion_tokens == len(complete.output_ids) == 8
