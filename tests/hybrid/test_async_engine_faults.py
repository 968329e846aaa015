"""Races and faults of the async engine: ids used again, panics, random cancels."""

import asyncio
import random
import threading

import pytest

from hybrid import (
    AsyncHybridEngine,
    EngineFailed,
    ExecutorFailed,
    InvalidRequest,
    RequestOutput,
    SamplingParams,
)
from hybrid.scheduler import StepPlan
from hybrid.testing import check_whole, ids_of, run
from tests.hybrid.null_stand import FaultyExecutor, make_engine
from tests.hybrid.serving_stand import collect, read, serve

GREEDY = SamplingParams(temperature=0, max_tokens=12)
LONG = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
PROMPTS = [[1, 2, 3], list(range(4, 13)), [5] * 8, [9, 8, 7, 6, 5]]


def test_an_executor_that_never_returns_leaves_no_reader_waiting() -> None:
    """Closing gives up after a while: it says so, and so does every reader."""
    gate = threading.Event()
    running = threading.Event()

    def block(_: StepPlan) -> None:
        running.set()
        assert gate.wait(timeout=60), "nobody let the executor go"

    engine = make_engine(executor=FaultyExecutor(block))

    async def body() -> None:
        serving = AsyncHybridEngine(engine)
        readers = [asyncio.create_task(read(serving, [1, 2], GREEDY)) for _ in range(2)]
        await asyncio.to_thread(running.wait, 60)
        with pytest.raises(EngineFailed, match=r"executor null, .* does not return"):
            await serving.close(timeout_s=0.05)
        for reader in readers:
            with pytest.raises(EngineFailed, match="did not stop"):
                await asyncio.wait_for(reader, timeout=60)
        gate.set()
        await serving.close()

    asyncio.run(body())


def test_an_id_used_again_never_gets_the_first_uses_outputs() -> None:
    """What was under way when the first reader left is not the second reader's."""
    gate = threading.Event()

    def fault(plan: StepPlan) -> None:
        if plan.step == 1:
            gate.wait(timeout=60)

    engine = make_engine(num_blocks=64, executor=FaultyExecutor(fault))
    short = SamplingParams(temperature=0, max_tokens=2)

    async def body(serving: AsyncHybridEngine) -> list[RequestOutput]:
        first = serving.generate([1, 2, 3], short, request_id="x")
        await anext(first)
        await first.aclose()
        again = serving.generate([7, 8, 9], GREEDY, request_id="x")
        reading = asyncio.create_task(collect(again))
        await asyncio.sleep(0)
        gate.set()
        return await reading

    outputs = serve(engine, body)
    assert {output.prompt_token_ids for output in outputs} == {(7, 8, 9)}
    assert ids_of([outputs[-1]]) == ids_of(run(make_engine(), [[7, 8, 9]], GREEDY))
    check_whole(engine)


def test_a_panic_on_the_engines_thread_tells_every_reader() -> None:
    """Even what is no ``Exception`` leaves nobody waiting."""

    class Panic(BaseException):
        """As libraries in other languages raise it."""

    def fault(plan: StepPlan) -> None:
        if plan.step == 2:
            raise Panic("index out of bounds")

    async def body(serving: AsyncHybridEngine) -> None:
        reads = (read(serving, prompt, LONG) for prompt in PROMPTS)
        results = await asyncio.gather(*reads, return_exceptions=True)
        assert [type(result) for result in results] == [ExecutorFailed] * len(PROMPTS)
        assert not serving.is_running

    serve(make_engine(num_blocks=200, executor=FaultyExecutor(fault)), body)


@pytest.mark.parametrize("request_id", ["", 5, b"a", [1], "a" * 257])
def test_a_request_id_that_is_no_name_is_refused(request_id: object) -> None:
    """Neither as a new request nor anywhere near the engine's thread."""

    async def body(serving: AsyncHybridEngine) -> None:
        with pytest.raises(InvalidRequest, match=r"request_id (is|has 257 char)"):
            await anext(serving.generate([1], GREEDY, request_id=request_id))
        await read(serving, [1], GREEDY)

    serve(make_engine(), body)


def test_random_cancels_on_a_tiny_pool_leave_it_whole() -> None:
    """Whoever stays gets the whole answer, whoever goes leaves nothing."""
    rng = random.Random(7)
    engine = make_engine(num_blocks=14, max_prefill_chunk_tokens=3)
    expected = ids_of(run(make_engine(), PROMPTS, GREEDY))

    async def body(serving: AsyncHybridEngine) -> None:
        async def visitor(number: int) -> None:
            which = number % len(PROMPTS)
            patience = rng.choice([0, 1, 2, 5, 100])
            stream = serving.generate(PROMPTS[which], GREEDY)
            last = None
            while patience and (last is None or not last.finished):
                last = await anext(stream)
                patience -= 1
            await stream.aclose()
            if last is not None and last.finished:
                assert ids_of([last]) == [expected[which]]

        await asyncio.gather(*(visitor(number) for number in range(80)))
        await read(serving, [1], GREEDY)

    serve(engine, body)
    check_whole(engine)
