"""Readers of KV events: numbers, late comers, slow ones, ends; resets of the cache."""

import asyncio
import threading
from contextlib import aclosing

import pytest

from hybrid import (
    AsyncHybridEngine,
    EngineClosed,
    EngineFailed,
    ExecutorFailed,
    SamplingParams,
)
from hybrid.kv_event_hub import MAX_UNREAD_BATCHES, KvEventBatch, KvSubscription
from hybrid.scheduler import Overloaded, StepPlan, UnsupportedFeature
from hybrid.scheduler.kv_events import BlocksStored, CacheCleared
from tests.hybrid.null_stand import FaultyExecutor, HeldExecutor, make_engine
from tests.hybrid.serving_stand import collect, read, serve
from tests.scheduler.kv_replay import Block, apply_events, findable_blocks

ONE = SamplingParams(temperature=0, max_tokens=1)
SOME = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)


def replay(batches: list[KvEventBatch]) -> dict[int, Block]:
    """The findable blocks that these batches lead to."""
    blocks: dict[int, Block] = {}
    for batch in batches:
        apply_events(blocks, batch.events)
    return blocks


def test_batches_are_numbered_and_add_up_to_what_can_be_found() -> None:
    """From 1 on, without a gap, whatever runs beside and is evicted."""
    engine = make_engine(num_blocks=12)

    async def body(serving: AsyncHybridEngine) -> list[KvEventBatch]:
        async with aclosing(serving.subscribe_kv_events()) as subscription:
            batches = [await anext(subscription)]
            for start in range(0, 60, 10):
                await asyncio.gather(
                    read(serving, range(start, start + 9), SOME),
                    read(serving, range(start, start + 5), SOME),
                )
            expected = findable_blocks(engine.scheduler)
            assert await serving.reset_prefix_cache()
            batches.append(await anext(subscription))
            while batches[-1].events[-1] != CacheCleared():
                batches.append(await anext(subscription))
        assert replay(batches[:-1]) == expected
        assert expected
        return batches

    batches = serve(engine, body)
    assert batches[0] == (1, (CacheCleared(),))
    numbers = [batch.sequence_number for batch in batches]
    assert numbers == list(range(1, len(batches) + 1))
    assert batches[-1].events == (CacheCleared(),)


def test_who_subscribes_late_begins_with_what_there_is() -> None:
    """With the number of the last batch, so that the next one follows on."""
    engine = make_engine()

    async def body(serving: AsyncHybridEngine) -> None:
        early, late = serving.subscribe_kv_events(), serving.subscribe_kv_events()
        await anext(early)
        await read(serving, range(1, 10), ONE)
        stored = await anext(early)
        assert stored.sequence_number == 2
        begin = await anext(late)
        assert begin == (2, (CacheCleared(), *stored.events))
        await read(serving, range(21, 30), ONE)
        assert await anext(early) == await anext(late)
        await early.aclose()
        await read(serving, range(41, 50), ONE)
        assert (await anext(late)).sequence_number == 4
        await late.aclose()

    serve(engine, body)


def test_what_changed_while_nobody_listened_takes_a_number() -> None:
    """A number never stands for two states."""
    engine = make_engine()

    async def body(serving: AsyncHybridEngine) -> None:
        for number in (1, 2):
            async with aclosing(serving.subscribe_kv_events()) as subscription:
                assert (await anext(subscription)).sequence_number == number
            await read(serving, range(20 * number, 20 * number + 9), ONE)
        async with aclosing(serving.subscribe_kv_events()) as subscription:
            number, events = await anext(subscription)
        assert number == 3
        assert sum(isinstance(event, BlocksStored) for event in events) == 2
        # By the time that it is answered the last reader's leaving is known.
        await read(serving, [1], ONE)
        assert engine.scheduler._manager.pool.events is None

    serve(engine, body)


def test_a_subscriber_that_falls_behind_is_ended_and_no_other() -> None:
    """It holds no more than its limit, and is told how to go on."""

    async def body() -> None:
        subscription = KvSubscription(max_unread=2)
        for number in range(1, 6):
            subscription.put(KvEventBatch(number, (CacheCleared(),)))
            assert len(subscription._unread) <= 2
        with pytest.raises(Overloaded, match="2 batches unread, at most 2"):
            await subscription.get()
        assert not subscription._unread

    asyncio.run(body())
    assert MAX_UNREAD_BATCHES >= 64


def test_a_slow_subscriber_stalls_neither_requests_nor_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests end and another reader sees everything while one reads nothing."""
    limits = iter((3, 100))
    monkeypatch.setattr(
        "hybrid.async_engine.KvSubscription", lambda: KvSubscription(next(limits))
    )

    async def body(serving: AsyncHybridEngine) -> None:
        slow, other = serving.subscribe_kv_events(), serving.subscribe_kv_events()
        await anext(slow)
        await anext(other)
        for start in range(0, 60, 10):
            await read(serving, range(start, start + 9), ONE)
        numbers = [(await anext(other)).sequence_number for _ in range(6)]
        assert numbers == [2, 3, 4, 5, 6, 7]
        with pytest.raises(Overloaded):
            await anext(slow)
        await other.aclose()

    serve(make_engine(num_blocks=64), body)


def test_a_scheduler_that_cannot_tell_ends_the_subscription_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests go on: the engine lives."""
    engine = make_engine()

    def refuse() -> None:
        raise UnsupportedFeature("it reports no KV events")

    monkeypatch.setattr(engine.scheduler, "start_kv_events", refuse)

    async def body(serving: AsyncHybridEngine) -> None:
        with pytest.raises(UnsupportedFeature, match="no KV events"):
            await anext(serving.subscribe_kv_events())
        assert (await read(serving, [1, 2], ONE))[-1].finished

    serve(engine, body)


def test_a_scheduler_that_fails_to_tell_ends_the_engine_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As any fault of a part does: subscribers and requests are told."""
    engine = make_engine()

    def fail() -> None:
        raise RuntimeError("lost count")

    monkeypatch.setattr(engine.scheduler, "take_kv_events", fail)

    async def body(serving: AsyncHybridEngine) -> None:
        with pytest.raises(EngineFailed, match=r"scheduler PagedScheduler.*lost count"):
            await collect(serving.subscribe_kv_events())
        with pytest.raises(EngineClosed, match="lost count"):
            await read(serving, [1, 2], ONE)

    serve(engine, body)


def test_closing_ends_a_subscription() -> None:
    """What was sent is read first, then the end."""

    async def main() -> None:
        serving = AsyncHybridEngine(make_engine())
        subscription = serving.subscribe_kv_events()
        await anext(subscription)
        waiting = asyncio.ensure_future(anext(subscription))
        await asyncio.sleep(0)
        await serving.close()
        with pytest.raises(EngineClosed):
            await waiting
        with pytest.raises(EngineClosed):
            await anext(serving.subscribe_kv_events())
        with pytest.raises(EngineClosed):
            await serving.reset_prefix_cache()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_engine_that_fails_ends_subscriptions_and_resets() -> None:
    """Nobody waits for an engine that is gone; all are told the reason."""
    running, gate = threading.Event(), threading.Event()

    def fault(plan: StepPlan) -> None:
        if plan.step:
            running.set()
            assert gate.wait(timeout=60), "nobody let the executor go"
            raise RuntimeError("device lost")

    async def body(serving: AsyncHybridEngine) -> None:
        subscription = serving.subscribe_kv_events()
        await anext(subscription)
        stream = serving.generate([1, 2, 3], LONG)
        await anext(stream)
        await asyncio.to_thread(running.wait, 60)
        waiting = asyncio.ensure_future(anext(subscription))
        reset = asyncio.ensure_future(serving.reset_prefix_cache())
        await asyncio.sleep(0)
        gate.set()
        results = await asyncio.gather(waiting, reset, return_exceptions=True)
        assert [type(result) for result in results] == [ExecutorFailed] * 2
        with pytest.raises(ExecutorFailed):
            await anext(stream)

    serve(make_engine(executor=FaultyExecutor(fault)), body)


def test_a_reset_is_refused_while_a_request_runs() -> None:
    """Nothing is forgotten then; afterwards nothing is found."""
    executor = HeldExecutor()
    engine = make_engine(num_blocks=64, executor=executor)

    async def body(serving: AsyncHybridEngine) -> None:
        stream = serving.generate(range(1, 10), LONG)
        await anext(stream)
        reset = asyncio.ensure_future(serving.reset_prefix_cache())
        await asyncio.sleep(0)
        executor.let_go()
        assert not await reset
        await stream.aclose()
        again = await read(serving, range(1, 10), ONE)
        assert again[-1].metrics.num_cached_tokens == 8
        assert await serving.reset_prefix_cache()
        again = await read(serving, range(1, 10), ONE)
        assert again[-1].metrics.num_cached_tokens == 0

    serve(engine, body)


def test_a_caller_that_leaves_a_reset_leaves_nothing() -> None:
    """Its answer comes to nobody and disturbs nobody."""
    executor = HeldExecutor()
    engine = make_engine(num_blocks=64, executor=executor)

    async def body(serving: AsyncHybridEngine) -> None:
        stream = serving.generate(range(1, 10), LONG)
        await anext(stream)
        reset = asyncio.ensure_future(serving.reset_prefix_cache())
        await asyncio.sleep(0)
        reset.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reset
        executor.let_go()
        await stream.aclose()
        assert await serving.reset_prefix_cache()
        assert not serving._calls._answers

    serve(engine, body)
