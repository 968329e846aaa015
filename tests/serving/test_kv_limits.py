"""Subscribers to KV events are few, and a large snapshot holds nobody up."""

import asyncio
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2 as pb

from hybrid.kv_event_hub import KvEventBatch
from hybrid.scheduler import PagedScheduler
from hybrid.scheduler.kv_events import BlocksStored, CacheCleared
from hybrid.serving import vllm_kv_events
from hybrid.serving.engine_host import MAX_KV_SUBSCRIBERS
from hybrid.serving.vllm_kv_events import KvEventMessages
from tests.hybrid.null_stand import HeldExecutor, make_engine
from tests.serving.service_stand import (
    Served,
    generate,
    refusal,
    request,
    serve,
    until,
)


def subscribe(served: Served) -> Any:
    """Call SubscribeKvEvents."""
    return served.stub.SubscribeKvEvents(pb.SubscribeKvEventsRequest())


def test_one_subscriber_too_many_is_told_to_come_back() -> None:
    """RESOURCE_EXHAUSTED with a hint; who leaves makes room."""

    async def body(served: Served) -> grpc.aio.AioRpcError:
        calls = [subscribe(served) for _ in range(MAX_KV_SUBSCRIBERS)]
        for call in calls:
            await call.read()
        status = await refusal(subscribe(served).read())
        assert len(await generate(served, request([1, 2, 3]))) == 1
        calls.pop().cancel()
        await until(lambda: len(served.host.engine._subscriptions) < MAX_KV_SUBSCRIBERS)
        calls.append(subscribe(served))
        await calls[-1].read()
        for call in calls:
            call.cancel()
        await until(lambda: not served.host.engine._subscriptions)
        return status

    status = serve(make_engine(), body)
    assert status.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"{MAX_KV_SUBSCRIBERS} subscribers" in str(status.details())
    assert ("retry-after-ms", "1000") in tuple(status.trailing_metadata() or ())


def test_who_comes_and_goes_while_a_step_lasts_costs_no_walk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine's thread, when it gets to them, passes them over."""
    walks = []
    start = PagedScheduler.start_kv_events

    def counted(scheduler: PagedScheduler) -> Any:
        walks.append(scheduler)
        return start(scheduler)

    monkeypatch.setattr(PagedScheduler, "start_kv_events", counted)
    executor = HeldExecutor(num_free_steps=0)
    engine = make_engine(executor=executor)

    async def body(served: Served) -> None:
        running = asyncio.create_task(generate(served, request([1, 2, 3])))
        await until(lambda: engine.stats().num_requests_running == 1)
        for _ in range(MAX_KV_SUBSCRIBERS + 1):
            call = subscribe(served)
            await call.initial_metadata()
            await until(lambda: bool(served.host.engine._subscriptions))
            call.cancel()
            await until(lambda: not served.host.engine._subscriptions)
        executor.let_go()
        await running
        call = subscribe(served)
        await call.read()
        call.cancel()

    serve(engine, body)
    assert len(walks) == 1


def test_others_come_in_between_the_pieces_of_a_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop turns after each message, and the next is not built before."""
    monkeypatch.setattr(vllm_kv_events, "MAX_SNAPSHOT_TOKENS", 4)
    turns = 0
    built_at: list[int] = []
    build = vllm_kv_events._message

    def message(*parts: Any) -> Any:
        built_at.append(turns)
        return build(*parts)

    monkeypatch.setattr(vllm_kv_events, "_message", message)

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def body(served: Served) -> None:
        await generate(served, request(list(range(1, 40)), max_tokens=1))
        turning = asyncio.create_task(turn())
        call = subscribe(served)
        first = await call.read()
        for _ in range(first.snapshot.count - 1):
            await call.read()
        turning.cancel()
        call.cancel()

    serve(make_engine(), body)
    assert len(built_at) >= 9
    assert len(set(built_at)) == len(built_at)


def test_a_message_of_a_snapshot_is_built_in_moments() -> None:
    """It has no more tokens than a loop can put into one without being missed."""
    num_blocks = 5000
    stored = BlocksStored(
        tuple(range(num_blocks)), None, tuple(range(num_blocks * 16)), 16
    )
    messages = list(KvEventMessages().take(KvEventBatch(1, (CacheCleared(), stored))))
    assert len(messages) == 3
    blocks = [
        [block for event in message.events for block in event.stored.blocks]
        for message in messages
    ]
    assert sum(map(len, blocks)) == num_blocks
    assert max(map(len, blocks)) * 16 <= 2**15
