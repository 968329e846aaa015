"""Forms that wait to be compiled, and the few threads that do it.

    any thread, any event loop ─ run, run_async ─> jobs, one a form ─> deep stacks

Apart from every other pool: what has no form never waits for one.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from hybrid.scheduler.errors import Overloaded
from hybrid.scheduler.structured_output import StructuredOutput

from .form_limits import (
    COMPILE_TIMEOUT_S,
    MAX_THREADS,
    MAX_WAITING,
    MAX_WAITING_CHARACTERS,
    STACK_BYTES,
)

if TYPE_CHECKING:
    from .grammar_state import GrammarState

RETRY_AFTER_S: Final = 1.0
_STACK_SIZE_LOCK: Final = threading.Lock()
"""Of the module, as the size of the next thread's stack is the process's."""


class CompileQueue:
    """Compiles a form once for all who wait for it; any thread may call it.

    A thread lives as long as there is work: an idle queue has none. One that never
    comes back counts as busy for good.
    """

    def __init__(
        self, compile_form: "Callable[[StructuredOutput], GrammarState]"
    ) -> None:
        """Start without threads; ``compile_form`` runs in some with deep stacks."""
        self._compile: Final = compile_form
        self._lock: Final = threading.Lock()
        self._jobs: Final[dict[StructuredOutput, _Job]] = {}
        """Waiting and running, in the order of asking."""
        self._num_threads = 0

    def run(self, output: StructuredOutput) -> "GrammarState":
        """Wait for a form; whatever compiling it raised is raised.

        Raises:
            Overloaded: too many forms wait, or this one has waited for too long.
            TimeoutError: compiling it takes too long.
        """
        job, waiter = self._join(output)
        try:
            return waiter.result(COMPILE_TIMEOUT_S)
        except TimeoutError:
            raise self._late(job) from None
        finally:
            waiter.cancel()

    async def run_async(self, output: StructuredOutput) -> "GrammarState":
        """Wait for a form as ``run``, holding neither the event loop nor a thread.

        A form that everybody has stopped waiting for is not begun.
        """
        job, waiter = self._join(output)
        try:
            async with asyncio.timeout(COMPILE_TIMEOUT_S):
                return await asyncio.wrap_future(waiter)
        except TimeoutError:
            raise self._late(job) from None

    def _join(self, output: StructuredOutput) -> "tuple[_Job, Future[GrammarState]]":
        waiter: Future[GrammarState] = Future()
        with self._lock:
            job = self._jobs.get(output) or self._add(output)
            job.waiters.append(waiter)
        return job, waiter

    def _add(self, output: StructuredOutput) -> "_Job":
        waiting = self._drop_unwanted()
        sizes = [job.output.num_characters for job in waiting]
        num_characters = sum(sizes) + output.num_characters
        # An empty queue takes any form.
        if sizes and (
            len(sizes) >= MAX_WAITING or num_characters > MAX_WAITING_CHARACTERS
        ):
            raise Overloaded(
                f"structured_output: {len(sizes)} forms of {sum(sizes)} characters "
                f"wait to be compiled, at most {MAX_WAITING} of "
                f"{MAX_WAITING_CHARACTERS}",
                retry_after_s=RETRY_AFTER_S,
            )
        if self._num_threads < MAX_THREADS:
            _start_on_deep_stack(self._work)
            self._num_threads += 1
        job = self._jobs[output] = _Job(output)
        return job

    def _drop_unwanted(self) -> "list[_Job]":
        """Forget what nobody waits for any more; the rest of what has not begun."""
        waiting = [job for job in self._jobs.values() if job.started_s is None]
        for job in waiting:
            if not job.is_wanted:
                del self._jobs[job.output]
        return [job for job in waiting if job.is_wanted]

    def _late(self, job: "_Job") -> Exception:
        """Whose fault it is: the form's, or that of those before it."""
        started_s = job.started_s
        # A part of the time went by before it began.
        if started_s is None or time.monotonic() - started_s < COMPILE_TIMEOUT_S / 2:
            return Overloaded(
                f"structured_output has waited for {COMPILE_TIMEOUT_S:g} s for other "
                "forms to be compiled",
                retry_after_s=RETRY_AFTER_S,
            )
        return TimeoutError(f"it takes more than {COMPILE_TIMEOUT_S:g} s to compile")

    # Below: the queue's threads.

    def _work(self) -> None:
        while (job := self._next()) is not None:
            state: GrammarState | None = None
            failure: BaseException | None = None
            try:
                state = self._compile(job.output)
            except BaseException as error:  # noqa: BLE001 - raised where it is awaited
                failure = error
            with self._lock:
                # From here on nobody joins it.
                del self._jobs[job.output]
            for waiter in job.waiters:
                if not waiter.set_running_or_notify_cancel():
                    continue
                if state is not None:
                    waiter.set_result(state)
                else:
                    waiter.set_exception(failure)

    def _next(self) -> "_Job | None":
        """Begin the oldest job; ``None`` if the thread is to end."""
        with self._lock:
            for job in self._drop_unwanted():
                job.started_s = time.monotonic()
                return job
            self._num_threads -= 1
            return None


class _Job:
    """A form that waits to be compiled, or is being compiled."""

    def __init__(self, output: StructuredOutput) -> None:
        self.output: Final = output
        self.waiters: Final[list[Future[GrammarState]]] = []
        """One for everyone who asked; cancelled where they have left."""
        self.started_s: float | None = None
        """When a thread began it, on the monotonic clock."""

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits for it."""
        return not all(waiter.cancelled() for waiter in self.waiters)


def _start_on_deep_stack(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work, name="hybrid-grammar", daemon=True)
    with _STACK_SIZE_LOCK:
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
