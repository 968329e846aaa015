"""Random mixed steps: chunks of prompts beside generations, blocks used again."""

from random import Random

import torch

from hybrid.backends.trtllm.attention import Attention, AttentionNeeds
from hybrid.bridge import pack_batch
from tests.backends.attention_history import AttentionHistory, Share, attend

NUM_BLOCKS = 40
MAX_SEQS = 4
MAX_LEN = 96


class MixedSteps:
    """Sequences that come and go, at most ``MAX_SEQS`` at a time."""

    def __init__(self, rng: Random, history: AttentionHistory) -> None:
        self._rng = rng
        self._history = history
        self._live: dict[str, tuple[int, int]] = {}
        """Prompt and length at which it ends, by name."""
        self._num_begun = 0

    def next_shares(self) -> list[Share]:
        """Some of each prompt that is left, one token of everybody else."""
        self._end_some()
        self._begin_some()
        contexts: list[Share] = []
        generations: list[Share] = []
        for name, (prompt, _) in self._live.items():
            left = prompt - self._history.num_tokens(name)
            if left > 0:
                contexts.append((name, self._rng.randint(1, left), True))
            else:
                generations.append((name, 1, False))
        return contexts + generations

    def _end_some(self) -> None:
        for name, (_, length) in list(self._live.items()):
            if self._history.num_tokens(name) >= length:
                self._history.end(name)
                del self._live[name]

    def _begin_some(self) -> None:
        while len(self._live) < self._rng.randint(1, MAX_SEQS):
            name, prompt = f"r{self._num_begun}", self._rng.randint(1, 60)
            self._num_begun += 1
            length = min(prompt + self._rng.randint(0, 8), MAX_LEN)
            self._live[name] = (prompt, length)
            self._history.begin(name, prompt)


def largest_error(
    attention: Attention, needs: AttentionNeeds, seed: int, num_steps: int = 8
) -> float:
    """Run random steps and compare; the largest difference there was, or NaN.

    Contexts' queries are 8-bit floats where the cache is.
    """
    history = AttentionHistory(
        needs, {}, NUM_BLOCKS, seed=seed, rounds_queries=needs.kv_dtype != needs.dtype
    )
    steps, errors = MixedSteps(Random(seed), history), []
    for _ in range(num_steps):
        one = history.step(*steps.next_shares())
        attention.begin_step(one.plan, pack_batch(one.plan))
        found = attend(attention, needs, one.qkv)
        errors.append((found.double() - one.expected).abs().max())
    return float(torch.stack(errors).max())
