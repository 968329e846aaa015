"""A thread that steps one engine; others hand it commands to run between steps.

Knows no event loop. All commands are run before each step, so that a cancelled
request's blocks are free before the next plan is made.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from hybrid.scheduler import EngineFailed

from .engine import HybridEngine
from .metrics import EngineSnapshot
from .outputs import RequestOutput


class EngineThread:
    """Starts at once, sleeps while there is nothing to do."""

    def __init__(
        self,
        engine: HybridEngine,
        *,
        took_turn: Callable[[list[RequestOutput]], None],
        ended: Callable[[list[RequestOutput], Exception | None], None],
    ) -> None:
        """Start the thread.

        Args:
            engine: driven by nobody else.
            took_turn: given what a turn, commands and perhaps a step, has put out;
                called in the thread.
            ended: given the last outputs and the error at its end; called there.
                ``None``: it was closed.
        """
        self._engine: Final = engine
        self._took_turn: Final = took_turn
        self._ended: Final = ended
        self._inbox: Final[deque[Callable[[], object]]] = deque()
        self._wake: Final = threading.Condition()
        self.snapshot: EngineSnapshot = engine.stats()
        """The engine's counters and gauges as of the last turn."""
        self.is_closing = False
        """Whether the engine is to be closed, or is."""
        self._thread: Final = threading.Thread(
            target=self._run, name="hybrid-engine", daemon=True
        )
        self._thread.start()

    def send(self, command: Callable[[], object]) -> None:
        """Have the thread call ``command`` before its next step."""
        with self._wake:
            self._inbox.append(command)
            self._wake.notify()

    def begin_close(self) -> None:
        """Close the engine after the step that runs; twice is no error."""
        with self._wake:
            self.is_closing = True
            self._wake.notify()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; whether it has come."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        outputs: list[RequestOutput] = []
        reason: Exception | None = None
        try:
            self._serve()
            outputs = self._engine.close()
            self.snapshot = self._engine.stats()
        except BaseException as error:  # noqa: BLE001 - every reader is told of it
            # Libraries in other languages raise panics that are no Exception.
            if isinstance(error, EngineFailed):
                # The answers that had finished in the very step.
                outputs = [output for output in error.outputs if not output.error]
            reason = (
                error
                if isinstance(error, Exception)
                else EngineFailed(f"the engine's thread ended: {error!r}")
            )
        self._ended(outputs, reason)

    def _serve(self) -> None:
        try:
            while self._wait_for_work():
                while self._inbox:
                    self._inbox.popleft()()
                outputs = []
                if self._engine.has_unfinished_requests():
                    outputs = self._engine.step()
                # First, so that who has an output finds it counted.
                self.snapshot = self._engine.stats()
                self._took_turn(outputs)
        except BaseException:
            self._engine.close()
            raise

    def _wait_for_work(self) -> bool:
        """Sleep while there is nothing to do; whether to go on."""
        with self._wake:
            self._wake.wait_for(
                lambda: (
                    self.is_closing
                    or self._inbox
                    or self._engine.has_unfinished_requests()
                )
            )
        return not self.is_closing
