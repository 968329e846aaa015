"""A KV pool without tensors: each slot holds a fingerprint of its whole context.

In a real model the K and V of a position depend on every token before it, the adapter
and the model. So a slot that was computed, shared, copied or found in the cache is
right exactly if its fingerprint is that of the true context.
"""

from collections.abc import Callable, Sequence

from hybrid.scheduler import GenerateRequest, ScheduledRequest, StepPlan


def fingerprints(request: GenerateRequest, token_ids: Sequence[int]) -> list[int]:
    """One number per position, of the tokens up to it and the key domains."""
    value = hash((request.adapter, request.cache_salt))
    numbers = []
    for token_id in token_ids:
        value = hash((value, token_id))
        numbers.append(value)
    return numbers


class FakeKV:
    """Carries out plans as an executor would and checks what each entry attends to."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots: list[list[int | None]] = [
            [None] * block_size for _ in range(num_blocks + 1)
        ]

    def run(
        self, plan: StepPlan, true_tokens: Callable[[ScheduledRequest], Sequence[int]]
    ) -> None:
        """Copy, write, then read every context through its block table."""
        for source, target in plan.block_copies:
            assert source != target
            self.slots[target] = list(self.slots[source])
        writers: dict[int, int] = {}
        contexts = []
        for index, entry in enumerate(plan.scheduled):
            start = entry.num_computed_tokens
            end = start + len(entry.token_ids)
            tokens = true_tokens(entry)
            assert entry.token_ids == tuple(tokens[start:end]), entry
            assert len(entry.block_ids) * self.block_size >= end, entry
            wanted = fingerprints(entry.request, tokens[:end])
            contexts.append((entry, wanted))
            for position in range(start, end):
                block_id, slot = self._locate(entry, position)
                assert block_id != 0, "the null block is written"
                assert writers.setdefault(block_id, index) == index, "two writers"
                self.slots[block_id][slot] = wanted[position]
        for index, (entry, wanted) in enumerate(contexts):
            for block_id in entry.block_ids:
                assert writers.get(block_id, index) == index, (
                    "reads what another writes"
                )
            found = [
                self.slots[block_id][slot]
                for block_id, slot in (
                    self._locate(entry, position) for position in range(len(wanted))
                )
            ]
            assert found == wanted, f"{entry.key} attends to another context"

    def spoil(self, plan: StepPlan) -> None:
        """Leave anything at all where the plan was to write."""
        for _, target in plan.block_copies:
            self.slots[target] = [None] * self.block_size
        for entry in plan.scheduled:
            start = entry.num_computed_tokens
            for position in range(start, start + len(entry.token_ids)):
                block_id, slot = self._locate(entry, position)
                self.slots[block_id][slot] = None

    def _locate(self, entry: ScheduledRequest, position: int) -> tuple[int, int]:
        return (
            entry.block_ids[position // self.block_size],
            position % self.block_size,
        )
