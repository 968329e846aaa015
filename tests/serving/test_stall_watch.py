"""A watch over waits: it ends the one that takes too long, and no other."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing

import pytest

from hybrid.serving.stall_watch import StallWatch

SOON_S = 0.05
NEVER_S = 3600.0


def watched(
    timeout_s: float, body: Callable[[StallWatch], Awaitable[None]]
) -> list[asyncio.TimerHandle]:
    """Run a body under a watch in debug mode, and close that; the timers it set."""

    async def run() -> list[asyncio.TimerHandle]:
        loop = asyncio.get_running_loop()
        timers = []
        call_at = loop.call_at

        def record(*args: object, **named: object) -> asyncio.TimerHandle:
            timers.append(call_at(*args, **named))  # type: ignore[arg-type] # passed on
            return timers[-1]

        loop.call_at = record  # type: ignore[method-assign] # to see what is set
        with closing(StallWatch(timeout_s)) as watch:
            await body(watch)
        return timers

    return asyncio.run(asyncio.wait_for(run(), 60), debug=True)


def test_a_wait_that_takes_too_long_ends() -> None:
    """Every time, also after waits that did not."""

    async def body(watch: StallWatch) -> None:
        for _ in range(2):
            with watch:
                await asyncio.sleep(0)
            with pytest.raises(TimeoutError), watch:
                await asyncio.Event().wait()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    watched(SOON_S, body)


def test_many_short_waits_take_one_timer() -> None:
    """Which is gone once the watch is closed."""

    async def body(watch: StallWatch) -> None:
        for _ in range(100):
            with watch:
                await asyncio.sleep(0)

    assert [timer.cancelled() for timer in watched(NEVER_S, body)] == [True]


def test_time_between_waits_does_not_count() -> None:
    """The timer of an early wait, due within a later one, ends none of them."""

    async def body(watch: StallWatch) -> None:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        while loop.time() < start_s + 3 * SOON_S:
            with watch:
                await asyncio.sleep(SOON_S / 50)

    watched(SOON_S, body)


def test_a_task_that_others_cancel_is_cancelled() -> None:
    """Whether the watch has not yet cancelled it, or has done so just before."""

    async def body(watch: StallWatch) -> None:
        async def wait() -> None:
            with watch:
                await asyncio.Event().wait()

        for ends_first in (False, True):
            task = asyncio.create_task(wait())
            await asyncio.sleep(0)
            if ends_first:
                watch.expire()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    watched(NEVER_S, body)
