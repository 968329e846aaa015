"""Many callers, one engine: a thread steps it, an event loop feeds and reads it.

    generate() ─ inbox ─> engine thread: take inbox, step, post ─> mailboxes

The thread takes the whole inbox before each step, so a cancelled request's blocks are
free before the next plan is made.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial
from itertools import count
from types import TracebackType
from typing import Final, Self, TypeVar

import structlog

from hybrid.scheduler import (
    DuplicateRequest,
    EngineClosed,
    EngineFailed,
    SamplingParams,
)
from hybrid.scheduler.shown_value import shown

from .early_end import unanswered
from .engine import HybridEngine
from .engine_thread import EngineThread
from .input_processor import check_request_id
from .kv_event_hub import KvEventBatch, KvEventHub, KvSubscription
from .metrics import EngineSnapshot
from .output_mailbox import OutputMailbox
from .outputs import RequestOutput
from .processed_request import ProcessedRequest
from .prompt import Prompt
from .stream_pace import StreamPace
from .thread_calls import ThreadCalls

T = TypeVar("T")
log = structlog.get_logger()

CLOSE_TIMEOUT_S: Final = 30.0
"""How long ``close`` waits for the step that is running, unless told otherwise."""


class AsyncHybridEngine:
    """Serves concurrent requests of one event loop.

    The engine must not be driven by anyone else. Use as an async context manager, or
    call ``close``.
    """

    def __init__(
        self, engine: HybridEngine, *, stream_interval_s: float | None = 0.0
    ) -> None:
        """Start the engine's thread; call within the event loop that will read.

        Args:
            engine: driven by nobody else.
            stream_interval_s: how long a stream's tokens may be gathered, its first
                and last apart; ``None``: longer under load (``StreamPace``).
        """
        self._engine: Final = engine
        self._loop: Final = asyncio.get_running_loop()
        self._pace: Final = StreamPace(stream_interval_s, self._loop)
        self._mailboxes: Final[dict[str, OutputMailbox]] = {}
        """Of the event loop: requests that somebody reads."""
        self._owners: Final[dict[str, OutputMailbox]] = {}
        """Of the engine's thread: whose the engine's requests are. An id may be in use
        again for another reader while the last outputs of its first use are under way.
        """
        self._ids: Final = count()
        self._kv_events: Final = KvEventHub(engine, self._to_loop)
        self._subscriptions: Final[set[KvSubscription]] = set()
        """Of the event loop: those that somebody reads."""
        self._error: Exception | None = None
        self.has_ended: Final = asyncio.Event()
        """Set once no request is answered any more, by whatever end."""
        self._thread: Final = EngineThread(
            engine, took_turn=self._took_turn, ended=self._ended
        )
        self._calls: Final = ThreadCalls(self._thread.send, self._to_loop)

    @property
    def is_running(self) -> bool:
        """Whether requests are taken."""
        return self._error is None and not self._thread.is_closing

    def stats(self) -> EngineSnapshot:
        """Counters and gauges as of the last step."""
        return self._thread.snapshot

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        stream: bool = True,
        ended: Callable[[], None] | None = None,
    ) -> AsyncGenerator[RequestOutput]:
        """Continue one prompt; yields the answer so far whenever it has grown.

        Leaving the iterator early (``aclose``, a cancelled task) aborts the request.

        Args:
            prompt: text, token ids, or a mapping of either.
            sampling_params: ``None``: the defaults.
            request_id: for logs and ``abort``; ``None``: a number.
            priority: lower runs first under the priority policy.
            stream: ``False``: outputs come only where a sample begins or ends.
            ended: called when nothing more is made, even while nobody reads.

        Raises:
            InvalidRequest: the request is at fault; nothing was queued.
            Overloaded: too many other forms of answers are to be compiled first.
            EngineFailed: the engine failed while this request ran.
            EngineClosed: the engine has ended.
        """
        self._check_open()
        request_id = self._new_id(request_id)
        mailbox = OutputMailbox(ended, stream=stream)
        self._mailboxes[request_id] = mailbox
        is_over = False
        try:
            processed = await self._engine.input_processor.process_async(
                request_id, prompt, sampling_params, priority=priority
            )
            mailbox.begin(unanswered(processed.request, processed.text))
            self._thread.send(partial(self._add, processed, mailbox))
            while not is_over:
                output = await mailbox.get()
                is_over = output.finished
                yield output
        finally:
            del self._mailboxes[request_id]
            if not is_over:
                self._thread.send(partial(self._leave, request_id, mailbox))

    def _new_id(self, request_id: str | None) -> str:
        """Check a caller's id, or make one."""
        if request_id is None:
            return f"request-{next(self._ids)}"
        check_request_id(request_id)
        if request_id in self._mailboxes:
            raise DuplicateRequest(
                f"request_id {shown(request_id)} is in use",
                field="request_id",
                value=request_id,
            )
        return request_id

    def abort(self, request_id: str) -> None:
        """End a request; its reader gets a last output with finish reason ``abort``.

        That comes at once; the blocks are free before the next step.
        """
        mailbox = self._mailboxes.get(request_id)
        if mailbox is not None:
            mailbox.abort()
        self._thread.send(partial(self._abort, request_id))

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; ``False`` (and nothing done) while any is in use.

        Raises:
            EngineClosed: the engine has ended.
        """
        return await self.call(self._engine.reset_prefix_cache)

    async def call(self, function: Callable[[], T]) -> T:
        """Run a function in the engine's thread, between two steps.

        What it raises ends the engine.

        Raises:
            EngineClosed: the engine has ended.
        """
        self._check_open()
        return await self._calls.run(function)

    async def subscribe_kv_events(self) -> AsyncGenerator[KvEventBatch]:
        """Tell what can be found in the prefix cache, now and after every step.

        The first batch leads from any state to the present one.

        Raises:
            UnsupportedFeature: the engine's scheduler cannot tell.
            Overloaded: the reader has fallen behind and is told no more.
            EngineClosed: the engine has ended.
        """
        self._check_open()
        subscription = KvSubscription()
        self._subscriptions.add(subscription)
        try:
            self._thread.send(partial(self._kv_events.add, subscription))
            while True:
                yield await subscription.get()
        finally:
            self._subscriptions.remove(subscription)
            subscription.is_over = True
            self._thread.send(partial(self._kv_events.remove, subscription))

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """End every request as aborted, stop the thread, free the executor.

        Raises:
            EngineFailed: the executor, or another part, did not return within
                ``timeout_s``; every reader has been told, the thread is left.
        """
        self._thread.begin_close()
        if not await asyncio.to_thread(self._thread.join, timeout_s):
            self._error = EngineFailed(
                f"the engine did not stop within {timeout_s:g} s: the "
                f"{self._engine.executor_name}, or another part, does not return"
            )
            log.error("engine.stuck", reason=str(self._error))
            self._fail_all()
            raise self._error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._error is not None:
            raise EngineClosed(str(self._error))
        if self._thread.is_closing:
            raise EngineClosed("the engine was closed")

    # Below: the engine's thread.

    def _took_turn(self, outputs: list[RequestOutput]) -> None:
        self._post(outputs)
        self._kv_events.publish()

    def _ended(self, outputs: list[RequestOutput], error: Exception | None) -> None:
        self._post(outputs)
        self._error = error or self._error
        self._to_loop(self._fail_all)

    def _add(self, processed: ProcessedRequest, mailbox: OutputMailbox) -> None:
        request_id = processed.request.request_id
        try:
            self._engine.add_processed(processed)
        except Exception as error:  # noqa: BLE001 - its own reader is told of it
            self._to_loop(partial(mailbox.fail, error))
        else:
            self._owners[request_id] = mailbox
            if mailbox.is_aborted:
                # While its prompt was taken apart: it never runs.
                self._abort(request_id)

    def _leave(self, request_id: str, mailbox: OutputMailbox) -> None:
        """Abort a request whose reader has gone, if it is that reader's still."""
        if self._owners.get(request_id) is mailbox:
            del self._owners[request_id]
            self._engine.abort(request_id)

    def _abort(self, request_id: str) -> None:
        output = self._engine.abort(request_id)
        if output is not None:
            self._post([output])

    def _post(self, outputs: list[RequestOutput]) -> None:
        letters = [
            (self._owners[output.request_id], output)
            for output in outputs
            if output.request_id in self._owners
        ]
        for output in outputs:
            if output.finished:
                self._owners.pop(output.request_id, None)
        if letters:
            # One wake-up of the loop per step, however many requests it advanced.
            self._to_loop(partial(self._pace.deliver, letters))

    def _to_loop(self, callback: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)

    # Below: the event loop.

    def _fail_all(self) -> None:
        error = self._error or EngineClosed("the engine was closed")
        self._pace.let_go()  # and leave no timer behind
        for mailbox in self._mailboxes.values():
            mailbox.fail(error)
        for subscription in self._subscriptions:
            subscription.fail(error)
        self._calls.fail_all(error)
        self.has_ended.set()
