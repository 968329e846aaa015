"""What follows when a part of a running engine raises: one rule for all of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

    @contextmanager
    def __call__(
        self,
        name: str,
        plan: StepPlan | None = None,
        kind: type[EngineFailed] = EngineFailed,
    ) -> Iterator[None]:
        """Guard one part.

        Args:
            name: who is at work, as the error is to say.
            plan: that is made and not committed.
            kind: of the error.

        Raises:
            EngineFailed: the part raised; of ``kind``.
        """
        try:
            yield
        except INTERRUPTS:
            if plan is not None:
                self._on_interrupt(plan)
            raise
        except BaseException as error:
            reason = f"{name} failed and the engine has ended: {failure_reason(error)}"
            outputs = tuple(self._on_failure(reason, plan))
            raise kind(reason, outputs=outputs) from error
