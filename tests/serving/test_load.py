"""Many requests at once, and thousands that end in every way they can."""

import asyncio
import gc
import sys
from collections import Counter
from random import Random
from typing import Any
from unittest.mock import Mock

import grpc
import psutil
import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

from hybrid import SamplingParams
from hybrid.testing import check_whole, run
from tests.hybrid.null_stand import VOCAB_SIZE, make_engine
from tests.serving.service_stand import (
    Served,
    collect,
    generate,
    request,
    serve,
    serving,
    until,
)

NUM_AT_ONCE = 200
NUM_CHANNELS = 4
NUM_WARM_UP = 400
NUM_ENDED = 1600
NUM_CLIENTS = 40
MAX_GROWTH_BYTES = 8 << 20
"""Of the process over those requests; about 1 MiB was seen."""
PATIENCE_S = 60
"""For what takes ten seconds; a hang is a failure."""


def prompt_of(random: Random) -> list[int]:
    """A prompt; some share their beginning."""
    length = random.randint(1, 40)
    return [length % 5] * 8 + random.choices(range(VOCAB_SIZE), k=length)


def test_many_small_requests_at_once_are_all_answered() -> None:
    """Over a few connections, more than run at once or fit the pool: each its own."""
    random = Random(1)
    prompts = [prompt_of(random) for _ in range(NUM_AT_ONCE)]
    params = SamplingParams(temperature=0, max_tokens=12)
    expected = [
        list(o.outputs[0].token_ids) for o in run(make_engine(), prompts, params)
    ]
    engine = make_engine(num_blocks=60, max_num_seqs=16)

    async def ask(stub: Any, number: int) -> list[int]:
        message = request(
            prompts[number],
            request_id=f"r{number}",
            stream=number % 2 == 0,
            max_tokens=12,
        )
        *chunks, complete = await collect(stub.Generate(message))
        ids = [token_id for chunk in chunks for token_id in chunk.token_ids]
        return ids or list(complete.output_ids)

    async def body(served: Served) -> list[list[int]]:
        channels = [
            grpc.aio.insecure_channel(served.address) for _ in range(NUM_CHANNELS)
        ]
        stubs = [pb_grpc.VllmEngineStub(channel) for channel in channels]
        answers = await asyncio.gather(
            *(ask(stubs[i % NUM_CHANNELS], i) for i in range(NUM_AT_ONCE))
        )
        for channel in channels:
            await channel.close()
        assert served.host.admission.num_requests == 0
        return answers

    assert serve(engine, body) == expected
    assert engine.stats().requests_finished_total.keys() == {"length"}
    check_whole(engine)


class Client:
    """Sends requests one after another and ends each in its own way."""

    def __init__(self, served: Served, random: Random, ends: Counter[str]) -> None:
        self._stub = served.stub
        self._random = random
        self._ends = ends

    async def run(self, num_requests: int) -> None:
        """Send requests; counts how they ended."""
        for _ in range(num_requests):
            end = self._random.choice(
                [self._read, self._cancel, self._abort, self._late]
            )
            await end(self._message())

    def _message(self) -> Any:
        draw = self._random
        return request(
            prompt_of(draw),
            # Some ids are in use twice, most never again.
            request_id=str(draw.choice([draw.randrange(50), draw.random()])),
            stream=draw.random() < 0.7,
            n=draw.choice([1, 1, 1, 3]),
            temperature=1.0,
            max_tokens=draw.choice([1, 5, 40, 60]),
            logprobs=draw.choice([None, 2]),
        )

    async def _read(self, message: Any) -> None:
        await self._finish(self._stub.Generate(message))

    async def _cancel(self, message: Any) -> None:
        """Leave before, within, or after the answer."""
        call = self._stub.Generate(message)
        await self._finish(call, self._random.choice([0, 0, 1, 3, 8]))

    async def _abort(self, message: Any) -> None:
        """Abort it, or whoever has its name, once or twice."""
        reading = asyncio.ensure_future(self._read(message))
        for _ in range(self._random.choice([1, 1, 2])):
            await self._pause()
            names = pb.AbortRequest(request_ids=[message.request_id])
            await self._stub.Abort(names)
        await reading

    async def _late(self, message: Any) -> None:
        """Give it less time than it may need."""
        timeout_s = self._random.choice([0.0, 0.001, 0.005, 0.02])
        await self._finish(self._stub.Generate(message, timeout=timeout_s))

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.choice([0, 0, 0.001, 0.005]))

    async def _finish(self, call: Any, num_messages: int | None = None) -> None:
        """Read to the end, or so many messages and then leave."""
        try:
            while num_messages != 0 and await call.read() is not grpc.aio.EOF:
                num_messages = None if num_messages is None else num_messages - 1
            await self._pause()
            call.cancel()
        except grpc.aio.AioRpcError:
            pass  # Its code is counted.
        self._ends[(await call.code()).name] += 1


async def end_randomly(served: Served, seed: int, num_requests: int) -> Counter[str]:
    """Many clients side by side; returns once nothing of their calls runs."""
    num_tasks = len(asyncio.all_tasks())
    ends: Counter[str] = Counter()
    clients = [Client(served, Random(seed + i), ends) for i in range(NUM_CLIENTS)]
    await asyncio.gather(*(c.run(num_requests // NUM_CLIENTS) for c in clients))
    await until(lambda: len(asyncio.all_tasks()) <= num_tasks)
    return ends


def num_objects() -> int:
    """Pieces of memory that Python holds."""
    gc.collect()
    return sys.getallocatedblocks()


def test_random_ends_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole pool, empty tables, no task, no memory, no noise; and it still serves."""
    failures = Mock()
    monkeypatch.setattr("hybrid.serving.rpc_errors.log", failures)
    engine = make_engine(num_blocks=80, max_num_seqs=12, max_num_batched_tokens=32)

    async def body(served: Served) -> Counter[str]:
        await end_randomly(served, 0, NUM_WARM_UP)
        process = psutil.Process()
        num_before, rss_bytes = num_objects(), process.memory_info().rss
        ends = await end_randomly(served, 1000, NUM_ENDED)
        # One thing left behind by every fourth request is too much.
        await until(lambda: num_objects() < num_before + NUM_ENDED // 4)
        assert process.memory_info().rss < rss_bytes + MAX_GROWTH_BYTES
        assert served.host.num_requests == 0
        assert served.host.admission.num_requests == 0
        assert served.host.admission.num_tokens == 0
        assert len(await generate(served, request([1, 2, 3]))) == 1
        return ends

    async def main() -> Counter[str]:
        async with serving(engine) as served, asyncio.timeout(PATIENCE_S):
            return await body(served)

    ends = asyncio.run(main())
    assert ends.keys() == {"OK", "CANCELLED", "DEADLINE_EXCEEDED"}
    assert sum(ends.values()) == NUM_ENDED
    assert failures.mock_calls == []
    check_whole(engine)
