"""Why a server ends: signals and failures, and which of them counts."""

import asyncio
import signal
from collections.abc import Callable, Iterator

import pytest

from hybrid.serving.shutdown import Ending
from tests.serving.signal_stand import SIGNALS, kept_signals


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Keep this process's own handlers."""
    with kept_signals():
        yield


def with_ending(body: Callable[[Ending], None]) -> Ending:
    """Run ``body`` in a loop, and let the loop see the signals."""

    async def main() -> Ending:
        with Ending() as ending:
            body(ending)
            # A signal reaches the loop through a pipe.
            await asyncio.wait({asyncio.create_task(ending.wait())}, timeout=0.2)
        return ending

    return asyncio.run(main())


@pytest.mark.parametrize("number", SIGNALS)
def test_one_signal_asks_and_leaves_the_next_to_the_kernel(
    number: signal.Signals,
) -> None:
    """After the first, either signal ends the process whatever Python is busy with."""

    async def main() -> tuple[bool, list[object]]:
        with Ending() as ending:
            signal.raise_signal(number)
            async with asyncio.timeout(60):
                await ending.wait()
            return ending.error is None, [signal.getsignal(n) for n in SIGNALS]

    assert asyncio.run(main()) == (True, [signal.SIG_DFL, signal.SIG_DFL])


@pytest.mark.parametrize("number", SIGNALS)
def test_what_was_ignored_stays_ignored(number: signal.Signals) -> None:
    """A shell ignores Ctrl-C for what it runs in the background."""
    signal.signal(number, signal.SIG_IGN)
    ending = with_ending(lambda _: signal.raise_signal(number))
    assert not ending.is_asked
    assert signal.getsignal(number) is signal.SIG_IGN


def test_the_first_reason_counts() -> None:
    """What fails because the server ends is no failure; what failed first is told."""

    def told_then_failed(ending: Ending) -> None:
        ending.ask()
        ending.fail("the gateway ended")

    def failed_twice(ending: Ending) -> None:
        ending.fail("the engine failed")
        ending.fail("the gateway ended")

    assert with_ending(told_then_failed).error is None
    assert with_ending(failed_twice).error == "the engine failed"
