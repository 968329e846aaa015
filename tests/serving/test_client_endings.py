"""A call that its caller leaves ends at the server, however it is left."""

import _thread
import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hybrid import EngineClosed
from hybrid.client import (
    AsyncHybridClient,
    ClientOptions,
    HybridClient,
)
from tests.serving.client_stand import (
    IDS,
    PROMPT,
    Act,
    ScriptedService,
    answers,
    ask_async,
    ask_sync,
    chunk,
    running_script,
)
from tests.serving.service_stand import TIMEOUT_S

CLIENTS = pytest.mark.parametrize("ask", [ask_sync, ask_async])
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True])
Ask = Callable[..., tuple[int, ...]]


def waits_for(event: threading.Event, *token_ids: int) -> Act:
    """Say something, then nothing until the client has gone; note that."""

    def act(request: Any, context: Any) -> Iterator[Any]:  # noqa: ARG001 - an Act
        context.add_callback(event.set)
        for token_id in token_ids:
            yield chunk(token_id)
        # Longer than a test waits, so that only the client can end it in time.
        event.wait(2 * TIMEOUT_S)

    return act


@CLIENTS
@BOTH_WAYS
def test_a_slow_server_costs_no_more_than_the_time(ask: Ask, stream: bool) -> None:
    """The call ends by itself, at both ends, and is not made again."""
    gone = threading.Event()
    service = ScriptedService(waits_for(gone))
    options = ClientOptions(timeout_s=0.2)
    with running_script(service) as address:
        with pytest.raises(TimeoutError):
            ask(address, options, stream=stream)
        assert gone.wait(TIMEOUT_S)
    assert len(service.requests) == 1


def test_closing_the_iterator_ends_the_call() -> None:
    """The server is told at once."""
    gone = threading.Event()
    service = ScriptedService(waits_for(gone, 7))
    with running_script(service) as address, HybridClient(address) as client:
        parts = client.stream(PROMPT, IDS)
        assert next(parts).token_ids == (7,)
        assert not gone.is_set()
        parts.close()
        assert gone.wait(TIMEOUT_S)


def test_an_error_of_the_caller_ends_the_call() -> None:
    """Even where the error, and with it all that it came through, is kept."""
    gone = threading.Event()
    service = ScriptedService(waits_for(gone, 7))
    with running_script(service) as address, HybridClient(address) as client:
        parts = client.stream(PROMPT, IDS)
        next(parts)
        with pytest.raises(KeyError) as kept:
            parts.throw(KeyError())
        assert gone.wait(TIMEOUT_S)
        assert kept.value


def test_an_error_in_a_task_ends_the_call() -> None:
    """The same in an event loop."""
    gone = threading.Event()

    async def main(address: str) -> None:
        async with AsyncHybridClient(address) as client:
            parts = client.stream(PROMPT, IDS)
            await anext(parts)
            with pytest.raises(KeyError) as kept:
                await parts.athrow(KeyError())
            assert await asyncio.to_thread(gone.wait, TIMEOUT_S)
            assert kept.value

    with running_script(ScriptedService(waits_for(gone, 7))) as address:
        asyncio.run(main(address), debug=True)


def test_ctrl_c_ends_the_call() -> None:
    """Pressed while the server says nothing: the server is told, the error goes on."""
    gone = threading.Event()
    service = ScriptedService(waits_for(gone, 7))
    with running_script(service) as address, HybridClient(address) as client:
        parts = client.stream(PROMPT, IDS)
        next(parts)
        threading.Timer(0.05, _thread.interrupt_main).start()
        with pytest.raises(KeyboardInterrupt) as kept:
            next(parts)
        assert gone.wait(TIMEOUT_S)
        assert kept.value is not None


def test_closing_the_client_ends_its_calls() -> None:
    """A thread that waits for an answer gets an error, and the server is told."""
    gone = threading.Event()
    service = ScriptedService(waits_for(gone, 7))
    with running_script(service) as address, ThreadPoolExecutor(1) as pool:
        client = HybridClient(address)
        parts = client.stream(PROMPT, IDS)
        next(parts)
        waiting = pool.submit(next, parts)
        client.close()
        with pytest.raises(EngineClosed, match="client is closed"):
            waiting.result(TIMEOUT_S)
        assert gone.wait(TIMEOUT_S)
        client.close()
        with pytest.raises(EngineClosed, match="client is closed"):
            client.health()


@BOTH_WAYS
def test_closing_the_client_cancels_no_task(stream: bool) -> None:
    """Who waits in an event loop gets the same error, not a cancellation."""
    gone, has_come = threading.Event(), threading.Event()

    def act(request: Any, context: Any) -> Iterator[Any]:
        has_come.set()
        yield from waits_for(gone)(request, context)

    async def main(address: str) -> None:
        client = AsyncHybridClient(address)
        parts = client.stream(PROMPT, IDS)
        answer = anext(parts) if stream else client.generate(PROMPT, IDS)
        task = asyncio.ensure_future(answer)
        assert await asyncio.to_thread(has_come.wait, TIMEOUT_S)
        await client.close()
        with pytest.raises(EngineClosed, match="client is closed"):
            await task

    with running_script(ScriptedService(act)) as address:
        asyncio.run(main(address))
        assert gone.wait(TIMEOUT_S)


def test_a_cancelled_task_ends_its_call() -> None:
    """The server is told; the next call of the same client is answered."""
    gone = threading.Event()
    service = ScriptedService(waits_for(gone, 7), answers(8))

    async def main(address: str) -> None:
        async with (
            asyncio.timeout(TIMEOUT_S),
            AsyncHybridClient(address) as client,
        ):
            has_begun = asyncio.Event()

            async def read() -> None:
                async for _ in client.stream(PROMPT, IDS):
                    has_begun.set()

            task = asyncio.create_task(read())
            await has_begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(gone.wait, TIMEOUT_S)
            (answer,) = await client.generate(PROMPT, IDS)
            assert answer.token_ids == (8,)
            assert asyncio.all_tasks() == {asyncio.current_task()}
        with pytest.raises(EngineClosed, match="client is closed"):
            await client.health()

    with running_script(service) as address:
        asyncio.run(main(address), debug=True)
