"""Prompts whose lengths lie around the borders of blocks and chunks."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from hybrid.scheduler import SamplingParams

NUM_TOKENS: Final = 12
"""Of every answer."""
GREEDY: Final = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
WILD: Final = SamplingParams(temperature=20, max_tokens=NUM_TOKENS, ignore_eos=True)
"""Hot enough that sharp logits give way to chance."""
CHUNKS: Final = (1, 7, 16, 17, None)
"""Tokens of a prompt in one step; ``None``: all."""

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Random prompts for one block size, the same in every run."""

    block_size: int
    vocab_size: int

    @property
    def prompts(self) -> tuple[TokenIds, ...]:
        """One token to a block and a half; the last three share a beginning."""
        size = self.block_size
        lengths = sorted({1, 5, 17, size - 1, size, size + 1} - {0})
        shared = self.shared_prefix
        part = shared[: size + max(size // 4, 1)]
        ends = self._some(7, seed=2)
        return (
            *(self._some(length, seed=length) for length in lengths),
            shared,
            (*shared, *ends[:2]),
            (*part, ends[2]),
        )

    @property
    def shared_prefix(self) -> TokenIds:
        """At least one whole block and a part of the next."""
        return self._some(self.block_size + max(self.block_size // 2, 8), seed=1)

    @property
    def growing(self) -> tuple[TokenIds, ...]:
        """Prompts that outgrow ``tight_num_blocks`` together while they answer."""
        longest = self._whole_blocks
        return tuple(self._some(longest - less, seed=90 + less) for less in range(4))

    @property
    def tight_num_blocks(self) -> int:
        """A pool that takes two growing prompts, one answered, but not two."""
        return 2 * self._whole_blocks // self.block_size + max(4 // self.block_size, 1)

    @property
    def narrow_num_blocks(self) -> int:
        """The smallest pool that takes any prompt, alone, to its answer's end."""
        longest = max(map(len, self.prompts)) + NUM_TOKENS
        return -(-longest // self.block_size)

    @property
    def num_blocks(self) -> int:
        """A pool that holds every prompt with its answer twice over."""
        lengths = [len(prompt) + NUM_TOKENS for prompt in self.prompts]
        return 2 * sum(-(-length // self.block_size) for length in lengths) + 8

    @property
    def _whole_blocks(self) -> int:
        """The least number of tokens, 16 or more, that fills whole blocks."""
        return -(-16 // self.block_size) * self.block_size

    def _some(self, num_tokens: int, *, seed: int) -> TokenIds:
        rng = np.random.default_rng(seed)
        return tuple(rng.integers(0, self.vocab_size, num_tokens).tolist())
