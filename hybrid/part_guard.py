"""What follows when a part of a running engine raises: one rule for all of them."""

from collections.abc import Callable
from types import TracebackType
from typing import Final

from hybrid.scheduler import EngineFailed, StepPlan

from .failure_reason import INTERRUPTS, failure_reason
from .outputs import RequestOutput


class PartGuard:
    """``with guard(name):`` stands around every call of a part that others may write.

    An interrupt passes through. Anything else, panics included, ends the engine.
    """

    def __init__(
        self,
        on_interrupt: Callable[[StepPlan], None],
        on_failure: Callable[[str, StepPlan | None], list[RequestOutput]],
    ) -> None:
        """Take what the engine does about either.

        Args:
            on_interrupt: ends the requests of a plan: what its step wrote is unknown.
            on_failure: ends the engine for a reason; returns the last outputs.
        """
        self._on_interrupt: Final = on_interrupt
        self._on_failure: Final = on_failure

    def __call__(
        self,
        name: str,
        plan: StepPlan | None = None,
        kind: type[EngineFailed] = EngineFailed,
    ) -> "GuardedPart":
        """Guard one part: a context that lasts for its work.

        Args:
            name: who is at work, as the error is to say.
            plan: that is made and not committed.
            kind: of the error.
        """
        return GuardedPart(self, name, plan, kind)

    def take(self, error: BaseException, part: "GuardedPart") -> None:
        """Do what the engine does about an error of a part.

        Raises:
            EngineFailed: unless the error is an interrupt; of the part's kind.
        """
        if isinstance(error, INTERRUPTS):
            if part.plan is not None:
                self._on_interrupt(part.plan)
            return
        failed = f"{part.name} failed and the engine has ended"
        reason = f"{failed}: {failure_reason(error)}"
        outputs = tuple(self._on_failure(reason, part.plan))
        raise part.kind(reason, outputs=outputs) from error


class GuardedPart:
    """One part at work. A class: generators cost a step three times as much."""

    __slots__ = ("_guard", "kind", "name", "plan")

    def __init__(
        self,
        guard: PartGuard,
        name: str,
        plan: StepPlan | None,
        kind: type[EngineFailed],
    ) -> None:
        self._guard = guard
        self.name = name
        self.plan = plan
        self.kind = kind

    def __enter__(self) -> None:
        """Nothing is to be done yet."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._guard.take(error, self)
