"""What steps put out: memory for logits and likeliest ids, kept for all of them."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.interface import ForwardResult
from hybrid.scheduler.errors import ConfigError


class ResultRows:
    """A row for each sequence; pages that no step writes to take no memory.

    Of logits those are all of them as long as only likeliest ids are wanted.

    Raises:
        ConfigError: there is no memory for so many.
    """

    def __init__(self, max_num_rows: int, vocab_size: int) -> None:
        self.max_num_rows: Final = max_num_rows
        self._logits: Final = _allocate_logits(max_num_rows, vocab_size)
        self._likeliest: Final = np.empty(max_num_rows, np.int64)
        self._result = ForwardResult()
        self._shown = (-1, True)
        self.addresses: Final = (
            self._logits.ctypes.data,
            self._likeliest.ctypes.data,
        )
        """Of the logits, float32, and of the likeliest ids, int64."""

    @property
    def num_bytes(self) -> int:
        """What they take once every row has been written."""
        return self._logits.nbytes + self._likeliest.nbytes

    def result(self, num_rows: int, *, has_logits: bool) -> ForwardResult:
        """Show the first rows, which a step has written, with their logits or without.

        Most steps have as many as the last: theirs is the same object.
        """
        if self._shown != (num_rows, has_logits):
            self._result = ForwardResult(
                logits=self._logits[:num_rows] if has_logits else None,
                likeliest_ids=self._likeliest[:num_rows].data,
            )
            # Last: an interrupt leaves nothing half told.
            self._shown = (num_rows, has_logits)
        return self._result


def _allocate_logits(max_num_seqs: int, vocab_size: int) -> NDArray[np.float32]:
    """Reserve them."""
    try:
        return np.empty((max_num_seqs, vocab_size), dtype=np.float32)
    except (MemoryError, ValueError) as error:
        raise ConfigError(
            f"max_num_seqs is {max_num_seqs}: there is no memory for the {vocab_size} "
            "logits of each; give fewer"
        ) from error
