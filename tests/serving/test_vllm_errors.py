"""Refusals and failures, as a client of the service meets them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import pytest

from hybrid.sampler.logits_processor import LogitsProcessor
from hybrid.scheduler import GenerateRequest, StepPlan
from hybrid.serving.admission import AdmissionLimits
from hybrid.testing import check_whole
from tests.hybrid.null_stand import FaultyExecutor, HeldExecutor, make_engine
from tests.serving.service_stand import (
    Served,
    generate,
    refusal,
    request,
    serve,
    until,
)

Code = grpc.StatusCode
PROMPT = [1, 2, 3, 4, 5]
LONG: dict[str, Any] = {"max_tokens": 100, "ignore_eos": True}


def mixed() -> Any:
    """A request that asks for a hand-over from another server."""
    message = request(PROMPT)
    message.kv_transfer_params_json = "{}"
    return message


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (request([]), "prompt"),
        (request([1] * 200), "max_model_len=128"),
        (request(PROMPT, temperature=-1.0), "temperature"),
        (request([1, 97]), "prompt_token_ids"),
        (request([1, 2**32 - 1]), "prompt"),
        (request(PROMPT, logit_bias={97: 1.0}), "logit_bias"),
        (request(PROMPT, logit_bias={-1: 1.0}), "logit_bias"),
        (request(PROMPT, stop_token_ids=[97]), "stop_token_ids"),
        (request(PROMPT, logprobs=-1), "max_logprobs=20"),
        (request(PROMPT, stop=["x"]), "stop"),
        (request("text"), "tokenizer"),
        (request(PROMPT, n=9), "max_num_seqs=8"),
        (request(PROMPT, max_tokens=123), "blocks"),
        (request(PROMPT, min_tokens=9), "min_tokens"),
        (request(PROMPT, request_id=""), "request_id"),
        (mixed(), "kv_transfer_params_json"),
    ],
)
def test_a_bad_request_is_told_its_field(message: Any, named: str) -> None:
    """INVALID_ARGUMENT, the field or the limit in its text; the next request runs."""
    engine = make_engine(num_blocks=8, max_num_seqs=8)

    async def body(served: Served) -> grpc.aio.AioRpcError:
        status = await refusal(served.stub.Generate(message))
        assert len(await generate(served, request(PROMPT))) == 1
        assert served.host.admission.num_requests == 0
        return status

    status = serve(engine, body)
    assert status.code() is Code.INVALID_ARGUMENT
    assert named in str(status.details())
    check_whole(engine)


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        (AdmissionLimits(max_requests=1), "2 requests in flight, at most 1"),
        (AdmissionLimits(max_tokens=110), "118 tokens in flight, at most 110"),
    ],
)
def test_a_full_server_says_when_to_come_back(
    limits: AdmissionLimits, named: str
) -> None:
    """RESOURCE_EXHAUSTED with a hint; a request later it is taken."""
    executor = HeldExecutor()
    engine = make_engine(num_blocks=64, executor=executor)

    async def body(served: Served) -> grpc.aio.AioRpcError:
        running = asyncio.create_task(generate(served, request(PROMPT, **LONG)))
        await until(lambda: engine.stats().generation_tokens_total == 1)
        status = await refusal(served.stub.Generate(request(PROMPT)))
        executor.let_go()
        await running
        assert len(await generate(served, request(PROMPT))) == 1
        return status

    status = serve(engine, body, limits=limits)
    assert status.code() is Code.RESOURCE_EXHAUSTED
    assert named in str(status.details())
    assert ("retry-after-ms", "1000") in tuple(status.trailing_metadata() or ())


@pytest.mark.parametrize(
    ("sampling", "num_tokens"),
    [
        ({"max_tokens": 100}, 5 + 100),
        ({"max_tokens": 10, "n": 3}, 5 + 3 * 10),
        ({"max_tokens": None}, 5 + 123),
        ({"max_tokens": None, "n": 3}, 5 + 3 * 123),
        ({"max_tokens": 100_000}, 5 + 123),
    ],
)
def test_a_request_counts_with_all_that_it_may_come_to_hold(
    sampling: dict[str, Any], num_tokens: int
) -> None:
    """Its prompt and, for each sample, what it asks for or the context has left."""
    executor = HeldExecutor(num_free_steps=0)
    engine = make_engine(num_blocks=200, max_model_len=128, executor=executor)

    async def body(served: Served) -> None:
        call = served.stub.Generate(request([1, 2, 3, 4, 5], **sampling))
        await until(lambda: served.host.num_requests == 1)
        assert served.host.admission.num_tokens == num_tokens
        call.cancel()
        executor.let_go()
        await until(lambda: served.host.num_requests == 0)
        assert served.host.admission.num_tokens == 0

    serve(engine, body)


def test_a_server_that_drains_sends_newcomers_elsewhere() -> None:
    """UNAVAILABLE for them; what is in goes on, and the health check says why."""
    executor = HeldExecutor()
    engine = make_engine(num_blocks=64, executor=executor)

    async def body(served: Served) -> list[Any]:
        running = asyncio.create_task(generate(served, request(PROMPT, **LONG)))
        await until(lambda: engine.stats().generation_tokens_total == 1)
        served.host.begin_drain()
        status = await refusal(served.stub.Generate(request(PROMPT)))
        assert status.code() is Code.UNAVAILABLE
        executor.let_go()
        return await running

    (complete,) = serve(engine, body)
    assert complete.finish_reason == "length"


def test_an_executor_that_dies_ends_every_request_by_a_status() -> None:
    """UNAVAILABLE for those that ran and those that come; never a hang."""

    def fault(plan: StepPlan) -> None:
        if plan.step == 3:
            raise RuntimeError("device lost")

    async def body(served: Served) -> None:
        calls = [
            served.stub.Generate(
                request(PROMPT, request_id=str(i), stream=True, **LONG)
            )
            for i in range(3)
        ]
        ends = await asyncio.gather(*map(refusal, calls))
        for status in [*ends, await refusal(served.stub.Generate(request(PROMPT)))]:
            assert status.code() is Code.UNAVAILABLE
            assert "device lost" in str(status.details())
        assert served.host.admission.num_requests == 0

    serve(make_engine(num_blocks=200, executor=FaultyExecutor(fault)), body)


class BreaksAtTheThird(LogitsProcessor):
    """Fails at the third token of a request whose prompt begins with 9."""

    def applies_to(self, request: GenerateRequest) -> bool:
        """Those alone."""
        return request.prompt_token_ids[0] == 9

    def apply(
        self,
        request: GenerateRequest,  # noqa: ARG002
        sample_index: int,  # noqa: ARG002
        output_token_ids: Sequence[int],
        row: Any,
    ) -> None:
        """Forbid every id, in the end."""
        if len(output_token_ids) == 2:
            row[:] = -np.inf


@pytest.mark.parametrize("stream", [False, True])
def test_a_draw_that_is_impossible_is_a_status_of_its_own(stream: bool) -> None:
    """INTERNAL for that request, by status and not in its answer; others go on."""
    engine = make_engine(logits_processors=[BreaksAtTheThird()])

    async def body(served: Served) -> grpc.aio.AioRpcError:
        other = asyncio.create_task(generate(served, request(PROMPT)))
        call = served.stub.Generate(request([9, 9], request_id="odd", stream=stream))
        kinds: set[str] = set()

        async def read() -> None:
            async for message in call:
                kinds.add(message.WhichOneof("response"))

        status = await refusal(read())
        # A reader may meet the end before it has seen the beginning.
        assert kinds <= ({"chunk"} if stream else set())
        assert (await other)[0].finish_reason == "length"
        return status

    status = serve(engine, body)
    assert status.code() is Code.INTERNAL
    assert "BreaksAtTheThird" in str(status.details())
    check_whole(engine)
