"""The prefix cache from outside: its events, its flush; and what is not offered."""

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2 as pb

from hybrid.scheduler import PagedScheduler, Scheduler
from hybrid.serving import vllm_kv_events
from tests.hybrid.null_stand import HeldExecutor, make_engine
from tests.serving.service_stand import (
    Served,
    generate,
    refusal,
    request,
    serve,
    until,
)

Code = grpc.StatusCode
PROMPT = list(range(1, 14))
"""Three full blocks of four."""


async def flush(served: Served, timeout_s: float = 0.0) -> Any:
    """Call FlushCache."""
    return await served.stub.FlushCache(pb.FlushCacheRequest(timeout_s=timeout_s))


def subscribe(served: Served) -> Any:
    """Call SubscribeKvEvents."""
    return served.stub.SubscribeKvEvents(pb.SubscribeKvEventsRequest())


def apply(found: dict[int, tuple[int, ...]], batches: Iterable[Any]) -> None:
    """Do to a router's view what batches say: token ids by block hash."""
    for batch in batches:
        for event in batch.events:
            match event.WhichOneof("data"):
                case "stored":
                    for block in event.stored.blocks:
                        found[block.block_hash] = tuple(block.token_ids)
                case "removed":
                    for block_hash in event.removed.block_hashes:
                        del found[block_hash]
                case "cleared":
                    found.clear()


def test_a_router_learns_what_is_cached() -> None:
    """A snapshot first, then every change; a chain of parents leads to each block."""

    async def body(served: Served) -> None:
        await generate(served, request(PROMPT, max_tokens=1))
        events = subscribe(served)
        first = await events.read()
        assert (first.snapshot.index, first.snapshot.count) == (0, 1)
        assert first.snapshot.blocks == 3
        assert first.events[0].WhichOneof("data") == "cleared"
        assert {event.event_id for event in first.events} == {0}
        found: dict[int, tuple[int, ...]] = {}
        apply(found, [first])
        assert sorted(found.values()) == [(1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 11, 12)]

        await generate(served, request([*PROMPT[:4], 7, 7, 7, 7, 7], max_tokens=1))
        second = await events.read()
        assert not second.HasField("snapshot")
        assert second.sequence_number == first.sequence_number + 1
        assert [event.event_id for event in second.events] == [1]
        (stored,) = (event.stored for event in second.events)
        assert found[stored.parent_block_hash] == (1, 2, 3, 4)
        assert [block.block_size for block in stored.blocks] == [4]
        apply(found, [second])
        assert len(found) == 4

        assert (await flush(served)).success
        apply(found, [await events.read()])
        assert not found
        events.cancel()

    serve(make_engine(), body)


@pytest.mark.parametrize("max_tokens", [1, 4, 9])
def test_a_large_snapshot_comes_in_pieces(
    max_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message outgrows a client's limit; numbers and parents have no gap."""
    monkeypatch.setattr(vllm_kv_events, "MAX_SNAPSHOT_TOKENS", max_tokens)
    prompts = [list(range(1, 22)), [*range(1, 6), *range(40, 60)], [7] * 5]

    async def body(served: Served) -> None:
        for prompt in prompts:
            await generate(served, request(prompt, max_tokens=1))
        events = subscribe(served)
        first = await events.read()
        total = first.snapshot.count
        chunks = [first, *[await events.read() for _ in range(total - 1)]]
        assert total > 2
        assert [c.snapshot.index for c in chunks] == list(range(total))
        assert {(c.snapshot.count, c.snapshot.blocks) for c in chunks} == {(total, 11)}
        assert first.events[0].WhichOneof("data") == "cleared"
        known: set[int] = set()
        for chunk in chunks:
            stored = [e.stored for e in chunk.events if e.HasField("stored")]
            blocks = [block for event in stored for block in event.blocks]
            assert len(blocks) <= max(max_tokens // 4, 1)
            for event in stored:
                if event.HasField("parent_block_hash"):
                    assert event.parent_block_hash in known
                known.update(block.block_hash for block in event.blocks)
        assert len(known) == 11

        await generate(served, request([9] * 5, max_tokens=1))
        after = await events.read()
        numbers = [batch.sequence_number for batch in [*chunks, after]]
        assert numbers == list(range(numbers[0], numbers[0] + total + 1))
        assert not after.HasField("snapshot")
        events.cancel()

    serve(make_engine(num_blocks=64), body)


def test_removed_blocks_are_told() -> None:
    """A router's view stays that of a small pool that many prompts go through."""
    engine = make_engine(num_blocks=6)

    async def body(served: Served) -> int:
        events = subscribe(served)
        found: dict[int, tuple[int, ...]] = {}
        apply(found, [await events.read()])
        kinds = set()
        for start in range(1, 50, 7):
            prompt = list(range(start, start + 13))
            await generate(served, request(prompt, max_tokens=1))
            batch = await events.read()
            kinds |= {event.WhichOneof("data") for event in batch.events}
            apply(found, [batch])
        assert kinds == {"stored", "removed"}
        return len(found)

    assert serve(engine, body) == engine.stats().kv_cached_idle_blocks


def test_a_subscriber_that_leaves_is_forgotten() -> None:
    """Nothing is recorded for it any more, and the server ends."""

    async def body(served: Served) -> None:
        for _ in range(3):
            events = subscribe(served)
            await events.read()
            events.cancel()
        await until(lambda: not served.host.engine._subscriptions)
        assert (await generate(served, request(PROMPT)))[0].completion_tokens == 8

    serve(make_engine(), body)


def test_a_scheduler_that_cannot_tell_is_no_error_of_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """UNIMPLEMENTED: gateways take that for "never", and route without events."""
    monkeypatch.setattr(PagedScheduler, "start_kv_events", Scheduler.start_kv_events)

    async def body(served: Served) -> grpc.aio.AioRpcError:
        return await refusal(subscribe(served).read())

    assert serve(make_engine(), body).code() is Code.UNIMPLEMENTED


def test_headers_come_before_the_first_event() -> None:
    """A client that waits for them is not kept waiting by a busy engine."""
    executor = HeldExecutor(num_free_steps=0)
    engine = make_engine(executor=executor)

    async def body(served: Served) -> None:
        running = asyncio.create_task(generate(served, request(PROMPT)))
        await until(lambda: engine.stats().num_requests_running == 1)
        events = subscribe(served)
        await events.initial_metadata()
        executor.let_go()
        await running
        events.cancel()

    serve(engine, body)


def test_a_flush_waits_for_nothing_unless_told() -> None:
    """At once: done when idle; refused, with nothing done, while a request runs."""
    executor = HeldExecutor(num_free_steps=2)
    engine = make_engine(executor=executor)

    async def body(served: Served) -> None:
        assert (await flush(served)).success
        running = asyncio.create_task(generate(served, request(PROMPT)))
        await until(lambda: engine.stats().generation_tokens_total == 2)
        pending = asyncio.create_task(flush(served))
        await until(lambda: bool(served.host.engine._calls._answers))
        executor.let_go()
        answer, _ = await asyncio.gather(pending, running)
        assert not answer.success
        assert "running" in answer.message

    serve(engine, body)


def test_a_flush_may_wait_for_requests_to_end() -> None:
    """It comes true when they have ended: the next equal prompt finds nothing."""
    executor = HeldExecutor(num_free_steps=2)
    engine = make_engine(executor=executor)

    async def body(served: Served) -> int:
        running = asyncio.create_task(generate(served, request(PROMPT)))
        await until(lambda: engine.stats().generation_tokens_total == 2)
        pending = asyncio.create_task(flush(served, 30))
        executor.let_go()
        answer, _ = await asyncio.gather(pending, running)
        assert answer.success
        return (await generate(served, request(PROMPT)))[0].cached_tokens

    assert serve(engine, body) == 0


def test_a_flush_that_waits_in_vain_says_so() -> None:
    """DEADLINE_EXCEEDED; nothing was done."""
    executor = HeldExecutor()
    engine = make_engine(executor=executor)

    async def body(served: Served) -> grpc.aio.AioRpcError:
        running = asyncio.create_task(generate(served, request(PROMPT)))
        await until(lambda: engine.stats().generation_tokens_total == 1)
        status = await refusal(flush(served, 0.05))
        executor.let_go()
        await running
        return status

    status = serve(engine, body)
    assert status.code() is Code.DEADLINE_EXCEEDED
    assert "requests were running" in str(status.details())


@pytest.mark.parametrize("timeout_s", [-1.0, float("nan"), float("inf")])
def test_a_wait_must_be_a_time(timeout_s: float) -> None:
    """INVALID_ARGUMENT names the field."""

    async def body(served: Served) -> grpc.aio.AioRpcError:
        return await refusal(flush(served, timeout_s))

    status = serve(make_engine(), body)
    assert status.code() is Code.INVALID_ARGUMENT
    assert "timeout_s" in str(status.details())
