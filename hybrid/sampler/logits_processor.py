"""The seam for changing logits: what a plugged-in processor is called with."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hybrid.scheduler.generate_request import GenerateRequest


class LogitsProcessor(Protocol):
    """Changes the logits of one position before the penalties.

    A pure function of its arguments: it is called in the order in which sequences are
    drawn, across requests, samples and preemptions, and may keep nothing between calls.
    """

    @abstractmethod
    def applies_to(self, request: GenerateRequest) -> bool:
        """Whether requests like this one are processed; asked once per request.

        Raises:
            Exception: anything; refuses this request, naming the processor.
        """

    @abstractmethod
    def apply(
        self,
        request: GenerateRequest,
        sample_index: int,
        output_token_ids: Sequence[int],
        row: NDArray[np.float32],
    ) -> None:
        """Change ``row`` in place.

        Args:
            request: whose draw this is.
            sample_index: which of its samples.
            output_token_ids: what the sequence has drawn so far; not to be changed.
            row: float32 ``[vocab]``, this position's own copy. ``-inf`` forbids an id;
                at least one must stay finite, none may become NaN or ``+inf``.

        Raises:
            Exception: anything; ends this request, naming the processor.
        """
