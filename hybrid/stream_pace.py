"""When streams are let have what they have gathered: one decision for all, each step.

    steps     a     b     c     d     e ............ (the executor is stuck)
    let go    a                 bcd                  e
              |---- interval ---|     |- interval --|

A message costs the server and its client about as much whether it carries one token or
five, and on few cores they take that time from the executor. A step advances all
streams, so that one clock for all gathers as much as one for each would.

vLLM has the like in ``--stream-interval``, counted in tokens; this is a time, so that
what a reader sees is as smooth however long a step takes.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from .output_mailbox import OutputMailbox
from .outputs import RequestOutput

AUTO_MIN_STREAMS: Final = 8
"""Fewer cost too little to be worth a wait."""
AUTO_INTERVALS_S: Final = (0.05, 0.1)
"""The least and the most: ten times a second still reads as a flow."""
AUTO_MESSAGES_PER_S: Final = 320
"""Of all streams together, between the two."""


def auto_interval_s(num_streams: int) -> float:
    """Say how long tokens of so many streams are gathered."""
    if num_streams < AUTO_MIN_STREAMS:
        return 0.0
    least, most = AUTO_INTERVALS_S
    return min(most, max(least, num_streams / AUTO_MESSAGES_PER_S))


class LoopTimer(Protocol):
    """What of an event loop is needed."""

    def time(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    def call_later(
        self, delay: float, callback: Callable[[], object], /
    ) -> asyncio.TimerHandle:
        """Call a function once, some seconds from now."""
        ...


class StreamPace:
    """Puts outputs into mailboxes, and lets them be read; used in the event loop."""

    def __init__(self, interval_s: float | None, loop: LoopTimer) -> None:
        """Hold nothing yet.

        Args:
            interval_s: the least from one letting go to the next by a step, and the
                most that a token waits; 0: none does. ``None``: by how many gather.
            loop: its time, and its timers.
        """
        self._interval_s: Final = interval_s
        self._loop: Final = loop
        self._holding: list[OutputMailbox] = []
        """Some may have been read meanwhile, for another of their samples has ended;
        to let go of nothing does no harm."""
        self._let_go_at_s = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        """For what is held where no step comes to let it go; ``None``: not set."""

    def deliver(self, letters: Iterable[tuple[OutputMailbox, RequestOutput]]) -> None:
        """Put a step's outputs into their mailboxes; let go what is due."""
        self._holding += [mailbox for mailbox, output in letters if mailbox.put(output)]
        if not self._holding:
            return
        interval_s = self._interval_s
        if interval_s is None:
            interval_s = auto_interval_s(len(self._holding))
        if self._loop.time() - self._let_go_at_s >= interval_s:
            self.let_go()
        elif self._timer is None:
            self._timer = self._loop.call_later(interval_s, self.let_go)

    def let_go(self) -> None:
        """Let everything be read that is held."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        holding, self._holding = self._holding, []
        self._let_go_at_s = self._loop.time()
        for mailbox in holding:
            mailbox.let_go()
