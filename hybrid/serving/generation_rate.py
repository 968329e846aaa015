"""How fast the engine generates, for those who look now and then."""

from typing import Final

MIN_WINDOW_S: Final = 1.0
"""Steps come in bursts: over less, the rate would say nothing."""


class GenerationRate:
    """Tokens per second since a look at least ``MIN_WINDOW_S`` ago."""

    def __init__(self) -> None:
        self._num_tokens = 0
        self._looked_at_s: float | None = None
        self._rate = 0.0

    def look(self, num_tokens: int, now_s: float) -> float:
        """The rate; 0 before there is one.

        Args:
            num_tokens: generated so far; never falls.
            now_s: on a monotonic clock.
        """
        if self._looked_at_s is not None:
            elapsed_s = now_s - self._looked_at_s
            if elapsed_s < MIN_WINDOW_S:
                return self._rate
            self._rate = (num_tokens - self._num_tokens) / elapsed_s
        self._num_tokens, self._looked_at_s = num_tokens, now_s
        return self._rate
