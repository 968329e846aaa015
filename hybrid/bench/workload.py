"""What one round asks of an engine."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, order=True)
class Workload:
    """Requests of equal size that come at once; every answer has its full length."""

    batch: int
    input_tokens: int
    output_tokens: int

    @property
    def context(self) -> int:
        """Tokens of a request at its end."""
        return self.input_tokens + self.output_tokens

    def num_kv_blocks(self, block_size: int) -> int:
        """Blocks that its requests hold at their ends."""
        return self.batch * -(-self.context // block_size)

    def prompts(self, vocab_size: int, seed: int) -> list[list[int]]:
        """Random token ids, ``[batch][input_tokens]``; another seed, other prompts."""
        rng = np.random.default_rng(seed)
        shape = (self.batch, self.input_tokens)
        ids: list[list[int]] = rng.integers(0, vocab_size, shape).tolist()
        return ids

    def __str__(self) -> str:
        return f"{self.batch} x ({self.input_tokens} + {self.output_tokens}) tokens"
