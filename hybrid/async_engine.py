"""Many callers, one engine: a thread steps it, an event loop feeds and reads it.

    generate() ─ inbox ─> engine thread: take inbox, step, post ─> mailboxes

The thread takes the whole inbox before each step, so a cancelled request's blocks are
free before the next plan is made.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from itertools import count
from types import TracebackType
from typing import Final, Self

import structlog

from hybrid.scheduler import (
    DuplicateRequest,
    EngineClosed,
    EngineFailed,
    GenerateRequest,
    SamplingParams,
)
from hybrid.scheduler.shown_value import shown

from .engine import HybridEngine
from .input_processor import check_request_id
from .metrics import EngineSnapshot
from .output_mailbox import OutputMailbox
from .outputs import RequestOutput
from .prompt import Prompt

log = structlog.get_logger()

CLOSE_TIMEOUT_S: Final = 30.0
"""How long ``close`` waits for the step that is running."""


class AsyncHybridEngine:
    """Serves concurrent requests of one event loop.

    The engine must not be driven by anyone else. Use as an async context manager, or
    call ``close``.
    """

    def __init__(self, engine: HybridEngine) -> None:
        """Start the engine's thread; call within the event loop that will read."""
        self._engine: Final = engine
        self._loop: Final = asyncio.get_running_loop()
        self._inbox: Final[deque[Callable[[], None]]] = deque()
        self._wake: Final = threading.Condition()
        self._mailboxes: Final[dict[str, OutputMailbox]] = {}
        """Of the event loop: requests that somebody reads."""
        self._owners: Final[dict[str, OutputMailbox]] = {}
        """Of the engine's thread: whose the engine's requests are. An id may be in use
        again for another reader while the last outputs of its first use are under way.
        """
        self._ids: Final = count()
        self._snapshot = engine.stats()
        self._error: Exception | None = None
        self._is_closing = False
        self.has_ended: Final = asyncio.Event()
        """Set once no request is answered any more, by whatever end."""
        self._thread: Final = threading.Thread(
            target=self._run, name="hybrid-engine", daemon=True
        )
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether requests are taken."""
        return self._error is None and not self._is_closing

    def stats(self) -> EngineSnapshot:
        """Counters and gauges as of the last step."""
        return self._snapshot

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput]:
        """Continue one prompt; yields the answer so far whenever it has grown.

        Leaving the iterator early (``aclose``, a cancelled task) aborts the request.

        Args:
            prompt: text, token ids, or a mapping of either.
            sampling_params: ``None``: the defaults.
            request_id: for logs and ``abort``; ``None``: a number.
            priority: lower runs first under the priority policy.

        Raises:
            InvalidRequest: the request is at fault; nothing was queued.
            EngineFailed: the engine failed while this request ran.
            EngineClosed: the engine has ended.
        """
        self._check_open()
        request_id = self._new_id(request_id)
        mailbox = OutputMailbox()
        self._mailboxes[request_id] = mailbox
        is_over = False
        try:
            # Tokenizing a long prompt must not stall the loop.
            request, text = await asyncio.to_thread(
                self._engine.input_processor.process,
                request_id,
                prompt,
                sampling_params,
                priority=priority,
            )
            self._send(partial(self._add, request, text, mailbox))
            while not is_over:
                output = await mailbox.get()
                is_over = output.finished
                yield output
        finally:
            del self._mailboxes[request_id]
            if not is_over:
                self._send(partial(self._leave, request_id, mailbox))

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
        """End a request; its reader gets a last output with finish reason ``abort``."""
        mailbox = self._mailboxes.get(request_id)
        if mailbox is not None:
            mailbox.is_aborted = True
        self._send(partial(self._abort, request_id))

    async def close(self) -> None:
        """End every request as aborted, stop the thread, free the executor.

        Raises:
            EngineFailed: the executor, or another part, did not return within
                ``CLOSE_TIMEOUT_S``; every reader has been told, the thread is left.
        """
        if not self._is_closing:
            self._is_closing = True
            with self._wake:
                self._wake.notify()
        await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            self._error = EngineFailed(
                f"the engine did not stop within {CLOSE_TIMEOUT_S:g} s: the "
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
        if self._is_closing:
            raise EngineClosed("the engine was closed")

    def _send(self, command: Callable[[], object]) -> None:
        with self._wake:
            self._inbox.append(command)  # type: ignore[arg-type] # its result is dropped
            self._wake.notify()

    # Below: the engine's thread.

    def _run(self) -> None:
        try:
            self._serve()
            self._post(self._engine.close())
        except BaseException as error:  # noqa: BLE001 - every reader is told of it
            # Libraries in other languages raise panics that are no Exception.
            if isinstance(error, EngineFailed):
                # The answers that had finished in the very step.
                self._post([output for output in error.outputs if not output.error])
            self._error = (
                error
                if isinstance(error, Exception)
                else EngineFailed(f"the engine's thread ended: {error!r}")
            )
        self._to_loop(self._fail_all)

    def _serve(self) -> None:
        try:
            while self._wait_for_work():
                while self._inbox:
                    self._inbox.popleft()()
                if self._engine.has_unfinished_requests():
                    self._post(self._engine.step())
                self._snapshot = self._engine.stats()
        except BaseException:
            self._engine.close()
            raise

    def _wait_for_work(self) -> bool:
        """Sleep while there is nothing to do; whether to go on."""
        with self._wake:
            self._wake.wait_for(
                lambda: (
                    self._is_closing
                    or self._inbox
                    or self._engine.has_unfinished_requests()
                )
            )
        return not self._is_closing

    def _add(
        self, request: GenerateRequest, text: str | None, mailbox: OutputMailbox
    ) -> None:
        try:
            self._engine.add_processed(request, text)
        except Exception as error:  # noqa: BLE001 - its own reader is told of it
            self._to_loop(mailbox.fail, error)
        else:
            self._owners[request.request_id] = mailbox
            if mailbox.is_aborted:
                # While its prompt was taken apart: it is told so, and never runs.
                self._abort(request.request_id)

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
            self._to_loop(_deliver, letters)

    def _to_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *arguments)

    # Below: the event loop.

    def _fail_all(self) -> None:
        error = self._error or EngineClosed("the engine was closed")
        for mailbox in self._mailboxes.values():
            mailbox.fail(error)
        self.has_ended.set()


def _deliver(letters: Sequence[tuple[OutputMailbox, RequestOutput]]) -> None:
    for mailbox, output in letters:
        mailbox.put(output)
