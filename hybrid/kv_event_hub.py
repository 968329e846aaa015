"""Hands a scheduler's KV events from the engine's thread to readers in an event loop.

A subscriber that falls behind is ended, and may begin anew with what there is then:
it stalls nobody, and takes bounded memory.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from hybrid.scheduler import KvEvent, Overloaded

from .engine import HybridEngine

MAX_UNREAD_BATCHES: Final = 1024
"""Some seconds of steps; each batch holds what one step stored and removed."""
RETRY_AFTER_S: Final = 1.0


class KvEventBatch(NamedTuple):
    """What one step, or one reset, changed."""

    sequence_number: int
    """From 1 on; within a subscription each is by one greater than the last. The first
    batch leads from any state to the one of its number."""
    events: tuple[KvEvent, ...]


class KvSubscription:
    """Batches for one reader; used inside the event loop only."""

    def __init__(self, max_unread: int = MAX_UNREAD_BATCHES) -> None:
        self._max_unread: Final = max_unread
        self._unread: Final[deque[KvEventBatch]] = deque()
        self._error: Exception | None = None
        self._is_filled: Final = asyncio.Event()
        self.is_over = False
        """Whether its reader has left, perhaps before the engine knew of it."""

    def put(self, batch: KvEventBatch) -> None:
        """Leave a batch; one too many ends the subscription."""
        if self._error is not None:
            return
        if len(self._unread) < self._max_unread:
            self._unread.append(batch)
            self._is_filled.set()
            return
        # Without the batch that does not fit those before it are worth nothing.
        self._unread.clear()
        self.fail(
            Overloaded(
                f"a subscriber to KV events has {self._max_unread} batches unread, "
                f"at most {self._max_unread}: subscribe again",
                retry_after_s=RETRY_AFTER_S,
            )
        )

    def fail(self, error: Exception) -> None:
        """Leave an error; it is raised once the batches before it were read."""
        self._error = error
        self._is_filled.set()

    async def get(self) -> KvEventBatch:
        """Wait for the next batch.

        Raises:
            Exception: the error that was left.
        """
        await self._is_filled.wait()
        if not self._unread:
            assert self._error is not None
            raise self._error
        batch = self._unread.popleft()
        if not self._unread and self._error is None:
            self._is_filled.clear()
        return batch


class KvEventHub:
    """Numbers batches and knows who wants them; of the engine's thread only."""

    def __init__(
        self, engine: HybridEngine, to_loop: Callable[[Callable[[], None]], None]
    ) -> None:
        """Begin without subscribers: nothing is recorded.

        Args:
            engine: whose scheduler's events.
            to_loop: has a callback called in the event loop, in order.
        """
        self._engine: Final = engine
        self._to_loop: Final = to_loop
        self._subscriptions: tuple[KvSubscription, ...] = ()
        self._sequence_number = 0

    def add(self, subscription: KvSubscription) -> None:
        """Begin with the present state; the error of a scheduler that cannot tell."""
        if subscription.is_over:
            # Those who come and go while a step lasts cost no walk through the cache.
            return
        self.publish()
        try:
            events = self._engine.scheduler.start_kv_events()
        except Exception as error:  # noqa: BLE001 - its own reader is told of it
            reason = error
            self._to_loop(lambda: subscription.fail(reason))
            return
        if not self._subscriptions:
            # Whatever changed while nobody listened counts as one batch.
            self._sequence_number += 1
        self._subscriptions += (subscription,)
        batch = KvEventBatch(self._sequence_number, events)
        self._to_loop(lambda: subscription.put(batch))

    def remove(self, subscription: KvSubscription) -> None:
        """Send it no more; without any subscriber nothing is recorded."""
        self._subscriptions = tuple(
            other for other in self._subscriptions if other is not subscription
        )
        if not self._subscriptions:
            self._engine.scheduler.stop_kv_events()

    def publish(self) -> None:
        """Send what was recorded since the last call."""
        if not self._subscriptions:
            return
        events = self._engine.take_kv_events()
        if not events:
            return
        self._sequence_number += 1
        batch = KvEventBatch(self._sequence_number, events)
        subscriptions = self._subscriptions
        self._to_loop(lambda: _deliver(subscriptions, batch))


def _deliver(subscriptions: Sequence[KvSubscription], batch: KvEventBatch) -> None:
    for subscription in subscriptions:
        subscription.put(batch)
