"""One executor, loaded once, under test: what the tests of the kit work with."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from hybrid.backends.interface import Capabilities
from hybrid.engine import HybridEngine
from hybrid.outputs import RequestOutput
from hybrid.scheduler import SamplingParams

from .answer import Answer, check_answers
from .engine_run import check_whole, ids_of, run
from .loaded_executor import LoadedExecutor
from .recording_executor import RecordingExecutor
from .workload import GREEDY, NUM_TOKENS, TokenIds, Workload

CHUNK_LIMITS: Final = frozenset({"max_prefill_chunk_tokens", "max_num_batched_tokens"})

Reference = Callable[[LoadedExecutor, Sequence[TokenIds], int], list[Answer]]


class Bench:
    """Makes engines, knows the right answers, says in what setting one was wrong."""

    def __init__(
        self,
        loaded: LoadedExecutor,
        reference: Reference,
        *,
        label: str,
        tolerance: float,
    ) -> None:
        """Start over a loaded executor.

        Args:
            loaded: the executor and its pool.
            reference: the right answers to prompts.
            label: model and block size, for messages.
            tolerance: see ``check_answers``.
        """
        self.loaded: Final = loaded
        self.label: Final = label
        self.tolerance: Final = tolerance
        self.recorder: Final = RecordingExecutor(loaded.executor)
        self.workload: Final = Workload(loaded.block_size, loaded.info.vocab_size)
        self._reference: Final = reference
        self._answers: Final[dict[TokenIds, Answer]] = {}
        self._engines: Final[list[HybridEngine]] = []

    @property
    def capabilities(self) -> Capabilities:
        """What the executor declares."""
        return self.loaded.executor.capabilities()

    def require(self, field: str) -> None:
        """Skip the running test unless the executor declares a capability."""
        if not getattr(self.capabilities, field):
            pytest.skip(f"executor {self.capabilities.name} declares no {field}")

    def require_sampling(self, *fields: str) -> None:
        """Skip the running test unless requests may set these sampling fields."""
        can = self.capabilities
        missing = set(fields) - set(can.sampling_fields)
        if missing and not can.returns_logits:
            pytest.skip(
                f"executor {can.name} samples itself, without {', '.join(missing)}"
            )

    def require_exact(self) -> None:
        """Skip the running test where answers are right within a tolerance only."""
        if self.tolerance:
            pytest.skip(f"draws cannot be compared within {self.tolerance}")

    def engine(self, **limits: Any) -> HybridEngine:
        """Make an engine whose plans are recorded; its pool is checked at the end.

        Where chunks are aligned, what limits their tokens is at least a block.
        """
        self.recorder.plans.clear()
        if self.capabilities.aligned_chunks:
            limits |= {
                name: max(limits[name], self.loaded.block_size)
                for name in CHUNK_LIMITS & limits.keys()
                if limits[name] is not None
            }
        engine = self.loaded.engine(executor=self.recorder, **limits)
        self._engines.append(engine)
        return engine

    def run(
        self,
        prompts: Sequence[TokenIds],
        params: SamplingParams | Sequence[SamplingParams] = GREEDY,
        **limits: Any,
    ) -> list[RequestOutput]:
        """Run prompts together in an engine of their own."""
        return run(self.engine(**limits), prompts, params)

    def expected(self, prompts: Sequence[TokenIds]) -> list[Answer]:
        """The right greedy answers, asked for once."""
        unknown = [prompt for prompt in prompts if prompt not in self._answers]
        if unknown:
            answers = self._reference(self.loaded, unknown, NUM_TOKENS)
            self._answers.update(zip(unknown, answers, strict=True))
        return [self._answers[prompt] for prompt in prompts]

    def check(
        self,
        prompts: Sequence[TokenIds],
        outputs: Sequence[RequestOutput],
        setting: str,
    ) -> None:
        """Assert that greedy outputs are the right answers."""
        check_answers(
            self.expected(prompts),
            ids_of(outputs),
            tolerance=self.tolerance,
            setting=f"{self.label}, {setting}",
        )

    def check_pools(self) -> None:
        """Assert that every engine that came to rest left its pool whole."""
        engines, self._engines[:] = list(self._engines), []
        for engine in engines:
            if not engine.scheduler.has_unfinished():
                check_whole(engine)
