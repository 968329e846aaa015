"""Readers of KV events beside random traffic know exactly what can be found."""

import asyncio
import random
from contextlib import aclosing

import pytest

from hybrid import AsyncHybridEngine, SamplingParams
from hybrid.kv_event_hub import KvEventBatch
from hybrid.scheduler import CacheCleared
from tests.hybrid.null_stand import make_engine
from tests.hybrid.serving_stand import read, serve
from tests.scheduler.kv_replay import Block, apply_events, findable_blocks

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.mark.parametrize("seed", range(3))
def test_random_traffic_is_replayed_to_the_block(seed: int) -> None:
    """On a tiny pool, with cancels and preemptions, for early and late readers."""
    rng = random.Random(seed)
    engine = make_engine(num_blocks=14, max_prefill_chunk_tokens=3)

    async def visitor(serving: AsyncHybridEngine, number: int) -> None:
        start = rng.choice([0, 0, 10, 20, 40])
        patience = rng.choice([0, 1, 3, 100])
        stream = serving.generate(range(start, start + 9 + number % 4), GREEDY)
        async with aclosing(stream):
            async for _ in stream:
                patience -= 1
                if patience <= 0:
                    break

    async def reader(serving: AsyncHybridEngine) -> dict[int, Block]:
        """Replay until everything is forgotten; the state just before that."""
        blocks: dict[int, Block] = {}
        batches: list[KvEventBatch] = []
        async with aclosing(serving.subscribe_kv_events()) as subscription:
            async for batch in subscription:
                batches.append(batch)
                if len(batches) > 1 and batch.events == (CacheCleared(),):
                    break
                apply_events(blocks, batch.events)
        numbers = [batch.sequence_number for batch in batches]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        return blocks

    async def body(serving: AsyncHybridEngine) -> None:
        readers = [asyncio.create_task(reader(serving))]
        for start in range(0, 60, 20):
            numbers = range(start, start + 20)
            await asyncio.gather(*(visitor(serving, number) for number in numbers))
            readers.append(asyncio.create_task(reader(serving)))
        # Answered after the last reader has begun and the last visitor's leaving.
        await read(serving, [1, 2], GREEDY)
        expected = findable_blocks(engine.scheduler)
        assert expected
        assert await serving.reset_prefix_cache()
        assert await asyncio.gather(*readers) == [expected] * len(readers)

    serve(engine, body)
    assert engine.stats().preemptions_total
