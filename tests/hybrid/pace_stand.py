"""A pace of streams on a clock that tests turn, and readers who do not wait."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from hybrid import RequestOutput, SamplingParams
from hybrid.output_mailbox import OutputMailbox
from hybrid.stream_pace import StreamPace
from tests.hybrid.null_stand import make_engine

T = TypeVar("T")
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@dataclass
class TurnedClock:
    """A loop's time and timers, moved by hand."""

    now_s: float = 1000.0
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    def time(self) -> float:
        """Say what was set."""
        return self.now_s

    def call_later(
        self, delay: float, callback: Callable[[], object], /
    ) -> asyncio.TimerHandle:
        """Take a timer, to be called by ``turn``."""
        loop = asyncio.get_running_loop()
        timer = asyncio.TimerHandle(self.now_s + delay, callback, (), loop)
        self.timers.append(timer)
        return timer

    @property
    def armed(self) -> list[asyncio.TimerHandle]:
        """The timers that are to come."""
        return [timer for timer in self.timers if not timer.cancelled()]

    def turn(self, seconds: float) -> None:
        """Let time pass, and call what has become due."""
        self.now_s += seconds
        for timer in self.armed:
            if timer.when() <= self.now_s:
                self.timers.remove(timer)
                timer._run()


def outputs_of(params: SamplingParams = GREEDY) -> Iterator[RequestOutput]:
    """The outputs of one request, step by step; of 12 tokens unless told otherwise."""
    engine = make_engine(num_blocks=64)
    engine.add_request("r", [1, 2, 3], params)
    while engine.has_unfinished_requests():
        yield from engine.step()


def begun(*, stream: bool = True) -> OutputMailbox:
    """A mailbox of a request that the engine is about to get."""
    mailbox = OutputMailbox(stream=stream)
    first = next(outputs_of())
    nothing = replace(first.outputs[0], token_ids=())
    mailbox.begin(replace(first, outputs=(nothing,)))
    return mailbox


async def read(mailbox: OutputMailbox) -> int | None:
    """Tokens that can be read at once; ``None``: the reader has to wait."""
    reader = asyncio.ensure_future(mailbox.get())
    for _ in range(3):
        await asyncio.sleep(0)
    if reader.done():
        return reader.result().metrics.num_output_tokens
    reader.cancel()
    await asyncio.wait({reader})
    return None


async def read_after(
    pace: StreamPace, mailbox: OutputMailbox, output: RequestOutput
) -> int | None:
    """Deliver one output; tokens that can be read then."""
    pace.deliver([(mailbox, output)])
    return await read(mailbox)


def paced(
    interval_s: float | None, body: Callable[[StreamPace, TurnedClock], Awaitable[T]]
) -> T:
    """Run ``body`` over a pace that has let something go just now."""

    async def main() -> T:
        clock = TurnedClock()
        pace = StreamPace(interval_s, clock)
        pace.let_go()
        return await body(pace, clock)

    return asyncio.run(main())
