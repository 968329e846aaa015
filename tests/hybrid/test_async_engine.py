"""Many readers of one engine: streams, cancels, errors and ends, without a sleep."""

import asyncio
from dataclasses import replace

import pytest

from hybrid import (
    AsyncHybridEngine,
    DuplicateRequest,
    EngineClosed,
    ExecutorFailed,
    FinishReason,
    InvalidRequest,
    RequestOutput,
    SamplingParams,
)
from hybrid.scheduler import StepPlan
from hybrid.testing import check_whole, ids_of, run
from tests.hybrid.null_stand import FaultyExecutor, HeldExecutor, make_engine
from tests.hybrid.serving_stand import collect, read, serve

GREEDY = SamplingParams(temperature=0, max_tokens=12)
LONG = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
PROMPTS = [[1, 2, 3], list(range(4, 13)), [5] * 8, [9, 8, 7, 6, 5]]


def test_concurrent_readers_get_the_answers_of_the_offline_engine() -> None:
    """Streams grow, end once, and say what a batch run says."""
    expected = ids_of(run(make_engine(), PROMPTS, GREEDY))

    async def body(serving: AsyncHybridEngine) -> list[list[RequestOutput]]:
        reads = (read(serving, prompt, GREEDY) for prompt in PROMPTS)
        return await asyncio.gather(*reads)

    streams = serve(make_engine(), body)
    assert [ids_of([stream[-1]])[0] for stream in streams] == expected
    for stream in streams:
        lengths = [len(output.outputs[0].token_ids) for output in stream]
        assert lengths == sorted(set(lengths))
        assert [output.finished for output in stream[:-1]] == [False] * (
            len(stream) - 1
        )


def test_leaving_a_stream_frees_its_blocks_before_the_next_plan() -> None:
    """A reader that goes away leaves nothing behind, and others go on."""
    executor = HeldExecutor()
    engine = make_engine(num_blocks=64, executor=executor)

    async def body(serving: AsyncHybridEngine) -> list[RequestOutput]:
        stream = serving.generate([1, 2, 3], LONG)
        await anext(stream)
        other = asyncio.create_task(read(serving, [3, 1], LONG))
        await stream.aclose()
        executor.let_go()
        return await other

    last = serve(engine, body)[-1]
    assert len(last.outputs[0].token_ids) == 100
    assert engine.stats().requests_finished_total == {"abort": 1, "length": 1}
    check_whole(engine)


def test_a_cancelled_task_aborts_its_request() -> None:
    """Cancellation while waiting for the next output reaches the engine."""
    executor = HeldExecutor()
    engine = make_engine(num_blocks=64, executor=executor)

    async def body(serving: AsyncHybridEngine) -> None:
        started = asyncio.Event()

        async def reader() -> None:
            async for _ in serving.generate([1, 2, 3], LONG):
                started.set()

        task = asyncio.create_task(reader())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        executor.let_go()
        await read(serving, [4], GREEDY)

    serve(engine, body)
    assert engine.stats().requests_finished_total == {"abort": 1, "length": 1}
    check_whole(engine)


def test_an_abort_by_id_ends_the_stream_with_its_reason() -> None:
    """The reader gets what there is, marked ``abort``; an unknown id is no error."""
    executor = HeldExecutor()
    engine = make_engine(num_blocks=64, executor=executor)

    async def body(serving: AsyncHybridEngine) -> RequestOutput:
        last = None
        serving.abort("nobody")
        async for output in serving.generate([1, 2, 3], LONG, request_id="me"):
            serving.abort("me")
            executor.let_go()
            last = output
        assert last is not None
        return last

    last = serve(engine, body)
    assert last.finished
    assert last.outputs[0].finish_reason is FinishReason.ABORT
    check_whole(engine)


@pytest.mark.parametrize("num_samples", [1, 3])
def test_an_abort_does_not_wait_for_the_step(num_samples: int) -> None:
    """Readers are told at once, what there is or nothing; their blocks come free."""
    executor = HeldExecutor(num_free_steps=2)
    engine = make_engine(num_blocks=64, max_num_seqs=num_samples, executor=executor)
    params = replace(LONG, n=num_samples)

    async def body(serving: AsyncHybridEngine) -> list[RequestOutput]:
        running = serving.generate([1, 2, 3], params, request_id="running")
        while len((await anext(running)).outputs[0].token_ids) < 2:
            pass
        queued = serving.generate([4, 5], params, request_id="queued")
        first = asyncio.ensure_future(anext(queued))
        await asyncio.sleep(0)
        while not serving._mailboxes["queued"]._newest:  # noqa: ASYNC110 - a thread's
            await asyncio.sleep(0)
        # The step is held all the while.
        serving.abort("running")
        serving.abort("queued")
        outputs = [await anext(running), await first]
        for stream in (running, queued):
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
        executor.let_go()
        # An id that is free again is another request's.
        again = await collect(serving.generate([4, 5], GREEDY, request_id="running"))
        assert len(again[-1].outputs[0].token_ids) == 12
        return outputs

    running, queued = serve(engine, body)
    assert running.finished
    assert queued.finished
    assert [len(sample.token_ids) for sample in running.outputs] == [2] * num_samples
    assert [sample.token_ids for sample in queued.outputs] == [()]
    assert queued.prompt_token_ids == (4, 5)
    reasons = {s.finish_reason for o in (running, queued) for s in o.outputs}
    assert reasons == {FinishReason.ABORT}
    assert engine.stats().requests_finished_total == {"abort": 2, "length": 1}
    check_whole(engine)


def test_an_abort_that_comes_before_the_request_is_queued_counts() -> None:
    """The request never runs, and its reader is told ``abort``."""
    engine = make_engine(num_blocks=64)

    async def body(serving: AsyncHybridEngine) -> list[RequestOutput]:
        async def reader() -> list[RequestOutput]:
            stream = serving.generate([1, 2, 3], LONG, request_id="me")
            return [output async for output in stream]

        task = asyncio.create_task(reader())
        await asyncio.sleep(0)
        serving.abort("me")
        outputs = await task
        # Answered after whatever was sent to the engine before.
        await serving.reset_prefix_cache()
        return outputs

    (output,) = serve(engine, body)
    assert output.outputs[0].finish_reason is FinishReason.ABORT
    assert output.outputs[0].token_ids == ()
    assert engine.stats().requests_finished_total == {"abort": 1}


def test_a_bad_request_fails_alone() -> None:
    """Errors of input and of admission reach their caller; the neighbour goes on."""

    async def body(serving: AsyncHybridEngine) -> list[RequestOutput]:
        good = asyncio.create_task(read(serving, PROMPTS[0], GREEDY))
        with pytest.raises(InvalidRequest, match="prompt is empty"):
            await read(serving, [], GREEDY)
        with pytest.raises(InvalidRequest, match="128"):
            await read(serving, [1] * 500, GREEDY)
        return await good

    outputs = serve(make_engine(), body)
    assert ids_of([outputs[-1]]) == ids_of(run(make_engine(), PROMPTS[:1], GREEDY))


def test_an_id_in_use_is_refused() -> None:
    """Two streams never share an id; afterwards it is free."""
    executor = HeldExecutor()

    async def body(serving: AsyncHybridEngine) -> None:
        stream = serving.generate([1], LONG, request_id="x")
        await anext(stream)
        with pytest.raises(DuplicateRequest, match="'x'"):
            await anext(serving.generate([2], GREEDY, request_id="x"))
        await stream.aclose()
        executor.let_go()
        outputs = [o async for o in serving.generate([2], GREEDY, request_id="x")]
        assert outputs[-1].finished

    serve(make_engine(num_blocks=64, executor=executor), body)


def test_an_executor_that_dies_tells_every_reader() -> None:
    """No stream hangs, later requests are refused with the same story."""

    def fault(plan: StepPlan) -> None:
        if plan.step == 3:
            raise RuntimeError("device lost")

    async def body(serving: AsyncHybridEngine) -> None:
        reads = (read(serving, prompt, LONG) for prompt in PROMPTS)
        results = await asyncio.gather(*reads, return_exceptions=True)
        assert [type(result) for result in results] == [ExecutorFailed] * len(PROMPTS)
        assert not serving.is_running
        with pytest.raises(EngineClosed, match="device lost"):
            await read(serving, [1], GREEDY)

    serve(make_engine(num_blocks=200, executor=FaultyExecutor(fault)), body)


def test_closing_ends_open_streams_as_aborted() -> None:
    """A reader of a closed engine gets a last output, a newcomer an error."""
    executor = HeldExecutor()
    engine = make_engine(num_blocks=64, executor=executor)

    async def main() -> None:
        serving = AsyncHybridEngine(engine)
        stream = serving.generate([1, 2, 3], LONG)
        await anext(stream)
        closing = asyncio.create_task(serving.close())
        await asyncio.sleep(0)
        executor.let_go()
        await closing
        last = [output async for output in stream][-1]
        assert last.finished
        assert last.outputs[0].finish_reason is FinishReason.ABORT
        with pytest.raises(EngineClosed):
            await anext(serving.generate([1], GREEDY))
        await serving.close()

    asyncio.run(main())


def test_a_slow_reader_loses_nothing_and_holds_nobody_up() -> None:
    """Outputs it did not read are folded into the newest."""

    async def body(serving: AsyncHybridEngine) -> list[RequestOutput]:
        slow = serving.generate([1, 2, 3], GREEDY)
        first = await anext(slow)
        await read(serving, [5], LONG)
        rest = [output async for output in slow]
        return [first, *rest]

    outputs = serve(make_engine(num_blocks=64), body)
    assert len(outputs) <= 3
    assert ids_of([outputs[-1]]) == ids_of(run(make_engine(), [[1, 2, 3]], GREEDY))
