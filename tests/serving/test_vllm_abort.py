"""Requests that end early: by Abort, by a client that leaves, by a deadline."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb
from structlog.testing import capture_logs

from hybrid import HybridEngine
from hybrid.testing import check_whole
from tests.hybrid.null_stand import HeldExecutor, make_engine
from tests.serving.service_stand import (
    Served,
    collect,
    generate,
    model_of,
    num_tokens_told,
    refusal,
    request,
    serve,
    until,
)

PROMPT = [1, 2, 3, 4, 5]
LONG: dict[str, Any] = {"max_tokens": 100, "ignore_eos": True}


def held_engine(
    num_free_steps: int = 1, **limits: Any
) -> tuple[HybridEngine, HeldExecutor]:
    """An engine that stops after some steps until it is let go."""
    executor = HeldExecutor(num_free_steps)
    return make_engine(num_blocks=64, executor=executor, **limits), executor


async def abort(served: Served, *request_ids: str) -> None:
    """Call Abort; it answers with nothing."""
    answer = await served.stub.Abort(pb.AbortRequest(request_ids=request_ids))
    assert answer == pb.AbortResponse()


async def check_left(served: Served, engine: HybridEngine, *reasons: str) -> None:
    """Nothing of any request is left in server, engine or pool."""
    # Answered after whatever was sent to the engine before: readers do not wait for it.
    await served.host.engine.reset_prefix_cache()
    assert served.host.num_requests == 0
    assert served.host.admission.num_requests == 0
    assert served.host.admission.num_tokens == 0
    finished = engine.stats().requests_finished_total
    assert sorted(finished) == sorted(set(reasons))
    assert sum(finished.values()) == len(reasons)
    check_whole(engine)


@pytest.mark.parametrize("stream", [False, True])
def test_an_abort_ends_the_answer_and_the_rpc_with_ok(stream: bool) -> None:
    """What there is comes, whatever step runs, and a complete that says ``abort``."""
    engine, executor = held_engine(num_free_steps=3)

    async def body(served: Served) -> list[Any]:
        call = served.stub.Generate(request(PROMPT, stream=stream, **LONG))
        answer = asyncio.create_task(collect(call))
        await until(lambda: num_tokens_told(served, "r") == 3)
        await abort(served, "r")
        # The step is held until the answer is there.
        messages = await answer
        executor.let_go()
        assert await call.code() is grpc.StatusCode.OK
        await check_left(served, engine, "abort")
        return messages

    *pieces, complete = serve(engine, body)
    assert isinstance(complete, pb.GenerateComplete)
    assert complete.finish_reason == "abort"
    if stream:
        assert sum(piece.completion_tokens for piece in pieces) == 3
    else:
        assert pieces == []
        assert len(complete.output_ids) == 3


def test_an_abort_before_the_first_token_ends_every_index() -> None:
    """A request that waits in the queue gets a complete per sample, all empty."""
    engine, executor = held_engine(max_num_seqs=2)

    async def body(served: Served) -> list[Any]:
        first = asyncio.create_task(generate(served, request(PROMPT, **LONG)))
        await until(lambda: engine.stats().generation_tokens_total == 1)
        queued = request(PROMPT, request_id="q", n=2, stream=True, logprobs=1, **LONG)
        second = asyncio.create_task(generate(served, queued))
        await until(lambda: served.host.num_requests == 2)
        await abort(served, "q", "r")
        executor.let_go()
        await first
        messages = await second
        await check_left(served, engine, "abort", "abort")
        return messages

    messages = serve(engine, body)
    assert [message.index for message in messages] == [0, 1]
    assert {message.finish_reason for message in messages} == {"abort"}
    assert not any(message.output_ids for message in messages)


def test_an_unknown_id_is_no_error() -> None:
    """Abort answers OK; a request that has ended is unknown too."""
    engine = make_engine()

    async def body(served: Served) -> None:
        await generate(served, request(PROMPT))
        await abort(served, "r", "nobody", "")
        await abort(served)
        assert len(await generate(served, request(PROMPT))) == 1

    serve(engine, body)


def test_two_requests_may_have_one_id_and_an_abort_ends_both() -> None:
    """The second runs beside the first; afterwards the id is free."""
    engine, executor = held_engine()

    async def body(served: Served) -> list[list[Any]]:
        calls = [
            asyncio.create_task(generate(served, request([i, i + 1], **LONG)))
            for i in (1, 5, 9)
        ]
        await until(lambda: served.host.num_requests == 3)
        await abort(served, "r")
        executor.let_go()
        answers = await asyncio.gather(*calls)
        await check_left(served, engine, "abort", "abort", "abort")
        return [*answers, await generate(served, request(PROMPT))]

    *aborted, fresh = serve(engine, body)
    assert [complete.finish_reason for (complete,) in aborted] == ["abort"] * 3
    assert fresh[0].finish_reason == "length"


def test_equal_ids_get_their_own_answers() -> None:
    """Requests that run at once under one id do not mix."""
    prompts = [[1, 2], [3, 4, 5], [6] * 9]

    async def body(served: Served) -> tuple[list[Any], list[Any]]:
        alone = [await generate(served, request(p, stream=True)) for p in prompts]
        together = [generate(served, request(p, stream=True)) for p in prompts]
        return alone, await asyncio.gather(*together)

    def ids(messages: list[Any]) -> list[int]:
        chunks = [m for m in messages if isinstance(m, pb.GenerateStreamChunk)]
        return [token_id for chunk in chunks for token_id in chunk.token_ids]

    alone, together = serve(make_engine(enable_prefix_caching=False), body)
    assert [ids(a) for a in together] == [ids(a) for a in alone]


IN_STATE: dict[str, tuple[int, Callable[[Served, HybridEngine], bool]]] = {
    "waiting for its first step": (0, lambda s, _: s.host.num_requests == 1),
    "within its prompt": (1, lambda _, e: e.stats().scheduled_tokens_total >= 4),
    "answering": (6, lambda _, e: e.stats().generation_tokens_total >= 3),
}
"""Steps that run before the engine is held, and when the client leaves."""


@pytest.mark.parametrize("state", sorted(IN_STATE))
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_blocks(state: str, stream: bool) -> None:
    """In whatever state its request is, nothing of it is left; others go on."""
    num_steps, is_reached = IN_STATE[state]
    engine, executor = held_engine(num_steps, max_num_batched_tokens=4)

    async def body(served: Served) -> list[Any]:
        prompt = list(range(1, 13))
        call = served.stub.Generate(request(prompt, stream=stream, n=2, **LONG))
        answer = asyncio.create_task(collect(call))
        await until(lambda: is_reached(served, engine))
        call.cancel()
        await asyncio.gather(answer, return_exceptions=True)
        await until(lambda: served.host.num_requests == 0)
        executor.let_go()
        other = await generate(served, request([9, 9], request_id="other"))
        finished = engine.stats().requests_finished_total
        # A request that the engine had not yet taken leaves no trace in it.
        assert finished.get("abort", 0) <= 1
        assert finished["length"] == 1
        check_whole(engine)
        return other

    (complete,) = serve(engine, body)
    assert complete.completion_tokens == 8


def test_a_deadline_frees_the_blocks() -> None:
    """The client is told DEADLINE_EXCEEDED, and the request is gone."""
    engine, executor = held_engine()

    async def body(served: Served) -> None:
        call = served.stub.Generate(request(PROMPT, **LONG), timeout=0.2)
        status = await refusal(call)
        assert status.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: served.host.num_requests == 0)
        executor.let_go()
        await generate(served, request(PROMPT))
        await check_left(served, engine, "abort", "length")

    serve(engine, body)


def test_a_client_that_does_not_read_holds_nobody_up_and_can_leave() -> None:
    """Its RPC waits for it, others are answered, and its leaving is noticed."""
    engine = make_engine(
        num_blocks=3000, max_model_len=8000, max_num_batched_tokens=8000
    )
    # Some megabytes of log-probabilities: more than any window of a stream.
    big = request([1] * 6000, n=8, stream=True, prompt_logprobs=20)

    async def body(served: Served) -> None:
        call = served.stub.Generate(big)
        await until(lambda: engine.stats().requests_finished_total == {"length": 1})
        other = await generate(served, request(PROMPT, request_id="other"))
        assert other[0].completion_tokens == 8
        assert served.host.num_requests == 1
        call.cancel()
        await until(lambda: served.host.num_requests == 0)
        await check_left(served, engine, "length", "length")

    with capture_logs() as events:
        serve(engine, body, model_of(engine, max_model_len=8000))
    assert "rpc.failed" not in {event["event"] for event in events}
