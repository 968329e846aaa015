"""An engine in a process of its own, and how it is asked for rounds.

The child's memory is that engine's alone, and between its rounds it sleeps.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, Self

from hybrid.engine_builder import load_engine
from hybrid.engine_config import EngineConfig
from hybrid.events import configure_logging
from hybrid.scheduler.errors import EngineFailed, HybridError

from .engine_choice import EngineChoice
from .process_memory import peak_rss_bytes
from .round_run import RoundRun, run_round
from .workload import Workload

_END_S: Final = 10.0
"""How long a child may take to end by itself."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """A loaded engine."""

    executor: str
    """Its name; where ``auto`` was asked for, what that came to."""
    dtype: str
    device: str
    vocab_size: int
    max_model_len: int
    block_size: int
    num_kv_blocks: int
    kv_block_bytes: int
    load_s: float
    """From options to an engine that takes requests; imports included."""
    load_peak_rss_bytes: int


@dataclass(frozen=True, slots=True)
class _Fault:
    """What went wrong in the child."""

    message: str


class EngineProcess:
    """A context manager; the child ends with it."""

    def __init__(self, choice: EngineChoice, options: Mapping[str, Any]) -> None:
        """Start the child and load the engine.

        Args:
            choice: the executor and its options.
            options: other keywords of ``EngineConfig``.

        Raises:
            EngineFailed: it cannot be loaded; says why.
        """
        self.label: Final = choice.label
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        keywords = {
            **options,
            "executor": choice.executor,
            "executor_options": dict(choice.options),
        }
        self._process: Final = spawn.Process(
            target=_serve, args=(theirs, keywords), name=f"bench {choice.label}"
        )
        self._process.daemon = True
        self._process.start()
        theirs.close()
        try:
            self.facts: Final[EngineFacts] = self._receive()
        except BaseException:
            self.close()
            raise

    def run(self, workload: Workload, *, seed: int) -> RoundRun:
        """Run one round.

        Raises:
            EngineFailed: the engine refused or failed, or its process died.
        """
        # Of a dead child the last words, if any, are still to be read.
        with suppress(OSError):
            self._connection.send((workload, seed))
        run: RoundRun = self._receive()
        return run

    def close(self) -> None:
        """End the child. Twice is no error."""
        self._connection.close()
        self._process.join(_END_S if self._process.exitcode is None else 0)
        self._process.kill()
        self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            # Nobody waits for the round that runs: Ctrl-C ends the command now.
            self._process.kill()
        self.close()

    def _receive(self) -> Any:
        try:
            answer = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(_END_S)
            raise EngineFailed(
                f"{self.label}: its process died (exit code {self._process.exitcode})"
            ) from None
        if isinstance(answer, _Fault):
            raise EngineFailed(f"{self.label}: {answer.message}")
        return answer


def _serve(connection: Connection, keywords: dict[str, Any]) -> None:
    """Load an engine and run rounds until nobody asks any more."""
    # A terminal's Ctrl-C reaches both processes; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Tables are on stdout; what a library prints is not for there.
    os.dup2(2, 1)
    configure_logging("warning")
    try:
        _answer(connection, keywords)
    except EOFError:
        return
    except HybridError as error:
        connection.send(_Fault(str(error)))
    except Exception as error:  # noqa: BLE001 - told to the parent, which raises
        connection.send(_Fault(f"{type(error).__name__}: {error}"))


def _answer(connection: Connection, keywords: dict[str, Any]) -> None:
    started_s = time.perf_counter()
    loaded = load_engine(EngineConfig(**keywords), log_requests=False)
    engine, limits = loaded.engine, loaded.limits
    try:
        vocab_size = engine.input_processor.vocab_size
        facts = EngineFacts(
            executor=loaded.started.executor,
            dtype=loaded.started.dtype,
            device=loaded.started.device,
            vocab_size=vocab_size,
            max_model_len=limits.max_model_len,
            block_size=limits.block_size,
            num_kv_blocks=limits.num_blocks,
            kv_block_bytes=engine.executor.kv_spec().block_bytes(limits.block_size),
            load_s=time.perf_counter() - started_s,
            load_peak_rss_bytes=peak_rss_bytes(),
        )
        connection.send(facts)
        while True:
            workload, seed = connection.recv()
            run = run_round(engine, workload, vocab_size=vocab_size, seed=seed)
            connection.send(run)
    finally:
        engine.close()
