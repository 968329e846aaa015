"""Whatever a server sends, an answer is read or refused; nothing else happens."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto import vllm_engine_pb2 as pb

from hybrid import SamplingParams
from hybrid.client import AnswerPart, RpcFailed
from hybrid.client.answer_reader import AnswerReader
from tests.serving.client_stand import chunk, complete

uint32 = st.integers(0, 2**32 - 1) | st.integers(0, 4)
floats = st.floats(width=32)
ids = st.lists(uint32, max_size=3)
tops = st.lists(
    st.builds(pb.TopLogProbs, values=st.lists(floats, max_size=3), token_ids=ids),
    max_size=3,
)
output_logprobs = st.builds(
    pb.OutputLogProbs,
    token_logprobs=st.lists(floats, max_size=3),
    token_ids=ids,
    top_logprobs=tops,
)
input_logprobs = st.builds(
    pb.InputLogProbs,
    token_logprobs=st.lists(
        st.builds(pb.InputTokenLogProb, value=st.none() | floats), max_size=3
    ),
    token_ids=ids,
    top_logprobs=tops,
)
shared: dict[str, Any] = {
    "prompt_tokens": uint32,
    "completion_tokens": uint32,
    "cached_tokens": uint32,
    "output_logprobs": st.none() | output_logprobs,
    "input_logprobs": st.none() | input_logprobs,
    "index": st.integers(0, 2),
}
chunks = st.builds(pb.GenerateStreamChunk, token_ids=ids, **shared)
completes = st.builds(
    pb.GenerateComplete,
    output_ids=ids,
    finish_reason=st.sampled_from(["stop", "length", "abort", "error", "", "tired"]),
    matched_token_id=st.none() | uint32,
    **shared,
)
messages = st.lists(
    st.builds(pb.GenerateResponse, chunk=chunks)
    | st.builds(pb.GenerateResponse, complete=completes)
    | st.just(pb.GenerateResponse()),
    max_size=6,
)


def read(reader: AnswerReader, sent: list[Any]) -> list[AnswerPart]:
    """Read messages to the end."""
    parts = [reader.take(message) for message in sent]
    reader.check_end()
    return parts


@given(messages, st.booleans(), st.sampled_from([None, 0, 2]))
def test_any_messages(sent: list[Any], stream: bool, logprobs: int | None) -> None:
    """They are a whole answer, or the server is said to break the protocol."""
    params = SamplingParams(n=2, logprobs=logprobs)
    reader = AnswerReader(params, (1,), None, stream=stream)
    parts = []
    with suppress(RpcFailed):
        parts = read(reader, sent)
        assert sorted(part.index for part in parts if part.finish_reason) == [0, 1]
    for part in parts:
        if logprobs is None:
            assert part.logprobs is None
        else:
            assert part.logprobs is not None
            assert len(part.logprobs) == len(part.token_ids)


def test_logprobs_that_do_not_fit_are_refused() -> None:
    """One that is missing would be taken for another token's."""
    for known in ([], [7], [7, 8]):
        message = chunk(7, 8)
        message.chunk.output_logprobs.token_logprobs.append(-1.0)
        message.chunk.output_logprobs.token_ids.extend(known)
        reader = AnswerReader(SamplingParams(logprobs=0), (1,), None, stream=True)
        with pytest.raises(RpcFailed, match="not one to a token"):
            reader.take(message)


def test_the_last_message_of_a_stream_repeats_and_adds_nothing() -> None:
    """Its ids were in a chunk already; without a stream they are the answer."""
    for stream, expected in ((True, [(7,), (8,), ()]), (False, [(7, 8)])):
        sent = [chunk(7), chunk(8), complete(8)] if stream else [complete(7, 8)]
        reader = AnswerReader(SamplingParams(), (1,), None, stream=stream)
        assert [part.token_ids for part in read(reader, sent)] == expected
