"""Sequences that grow step by step, and dense attention over all that they had.

The oracle of paged attention: it keeps every K and V as it was given and attends with
torch's own function in float64; of blocks it knows only which to name in the plan.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch.nn.functional import scaled_dot_product_attention

from hybrid.backends.trtllm.attention import Attention, AttentionNeeds
from hybrid.bridge import pack_batch
from hybrid.scheduler import GenerateRequest, SamplingParams, ScheduledRequest, StepPlan

FP8_MAX = 448
Share = tuple[str, int, bool]
"""Whose tokens, how many, and whether as a context."""


@dataclass(slots=True)
class _Sequence:
    prompt_len: int
    block_ids: tuple[int, ...] = ()
    num_tokens: int = 0
    keys: list[torch.Tensor] = field(default_factory=list)
    """For each layer ``[num_kv_heads, tokens, head_dim]``."""
    values: list[torch.Tensor] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """What an implementation is given, and what it must answer."""

    plan: StepPlan
    qkv: torch.Tensor
    """``[layers, N, (num_heads + 2 * num_kv_heads) * head_dim]``, on the host."""
    expected: torch.Tensor
    """float64 ``[layers, N, num_heads * head_dim]``."""


class AttentionHistory:
    """Makes steps of whatever sequences there are, and knows their answers."""

    def __init__(
        self,
        needs: AttentionNeeds,
        prompts: dict[str, int],
        num_blocks: int,
        *,
        seed: int = 0,
        rounds_queries: bool = False,
    ) -> None:
        """Know some sequences from the start.

        Args:
            needs: sizes, dtypes and windows.
            prompts: lengths, by name.
            num_blocks: of the pool, the null block included.
            seed: of the numbers.
            rounds_queries: whether contexts' queries are 8-bit floats, as the kernels
                of an 8-bit cache take them.
        """
        self._needs = needs
        self._free = list(range(1, num_blocks))
        self._sequences = {name: _Sequence(length) for name, length in prompts.items()}
        self._step = 0
        self._generator = torch.Generator().manual_seed(seed)
        self._rounds_queries = rounds_queries

    def begin(
        self,
        name: str,
        prompt_len: int,
        *,
        like: str | None = None,
        num_cached: int = 0,
    ) -> None:
        """Add a sequence, whose first tokens may be another's, in the other's blocks.

        Args:
            name: of the new one.
            prompt_len: its tokens.
            like: whose tokens are cached.
            num_cached: how many, a multiple of the block size.
        """
        new = self._sequences[name] = _Sequence(prompt_len, num_tokens=num_cached)
        if like is not None:
            other = self._sequences[like]
            new.block_ids = other.block_ids[: num_cached // self._needs.block_size]
            new.keys = [keys[:, :num_cached] for keys in other.keys]
            new.values = [values[:, :num_cached] for values in other.values]

    def end(self, name: str) -> None:
        """Drop a sequence that shares nothing; its blocks are given to others."""
        self._free += self._sequences.pop(name).block_ids

    def num_tokens(self, name: str) -> int:
        """How many tokens a sequence has computed."""
        return self._sequences[name].num_tokens

    def plan(self, *shares: Share) -> StepPlan:
        """Schedule tokens, contexts first; blocks are given in a scattered order."""
        entries = tuple(self._entry(name, count) for name, count, _ in shares)
        num_contexts = sum(is_context for *_, is_context in shares)
        self._step += 1
        return StepPlan(self._step, entries, num_contexts, (), (), ())

    def step(self, *shares: Share) -> HistoryStep:
        """Schedule tokens, draw their numbers and answer for them; they are had now."""
        plan, needs = self.plan(*shares), self._needs
        width = (needs.num_heads + 2 * needs.num_kv_heads) * needs.head_dim
        shape = (len(needs.windows), plan.num_scheduled_tokens, width)
        qkv = torch.randn(shape, generator=self._generator)
        qkv = qkv.to(getattr(torch, needs.dtype))
        expected = [
            self._expected(layer, rows, shares) for layer, rows in enumerate(qkv)
        ]
        for name, count, _ in shares:
            self._sequences[name].num_tokens += count
        return HistoryStep(plan, qkv, torch.stack(expected))

    def run(self, attention: Attention, *shares: Share) -> None:
        """One step over all layers; each answer is the dense one's, rounded."""
        one = self.step(*shares)
        attention.begin_step(one.plan, pack_batch(one.plan))
        found = attend(attention, self._needs, one.qkv)
        torch.testing.assert_close(found, one.expected.to(found.dtype))

    def stored(self, name: str, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What a sequence's K and V are: float64 ``[num_kv_heads, tokens, dims]``."""
        sequence = self._sequences[name]
        return sequence.keys[layer], sequence.values[layer]

    def block_ids(self, name: str) -> tuple[int, ...]:
        """A sequence's block table."""
        return self._sequences[name].block_ids

    def _entry(self, name: str, count: int) -> ScheduledRequest:
        sequence, computed = self._sequences[name], self._sequences[name].num_tokens
        while len(sequence.block_ids) * self._needs.block_size < computed + count:
            block = self._free.pop(7 * len(self._free) // 11)
            sequence.block_ids = (*sequence.block_ids, block)
        request = GenerateRequest(name, (1,) * sequence.prompt_len, SamplingParams())
        return ScheduledRequest(
            request, 0, (1,) * count, computed, sequence.block_ids, 1, 1
        )

    def _expected(
        self, layer: int, qkv: torch.Tensor, shares: Iterable[Share]
    ) -> torch.Tensor:
        needs = self._needs
        heads = qkv.double().view(len(qkv), -1, needs.head_dim).transpose(0, 1)
        sizes = (needs.num_heads, needs.num_kv_heads, needs.num_kv_heads)
        answers, start = [], 0
        for name, count, is_context in shares:
            rows = heads[:, start : start + count]
            start += count
            queries, new_keys, new_values = rows.split(sizes)
            if is_context and self._rounds_queries:
                queries = rounded_to_8_bits(queries, 1.0)
            sequence = self._sequences[name]
            keys = self._append(sequence.keys, layer, new_keys)
            values = self._append(sequence.values, layer, new_values)
            answer = scaled_dot_product_attention(
                queries[None],
                keys[None],
                values[None],
                attn_mask=_sees(count, keys.shape[1], needs.windows[layer]),
                scale=needs.scale,
                enable_gqa=True,
            )
            answers.append(answer[0].transpose(0, 1).reshape(count, -1))
        return torch.cat(answers)

    def _append(
        self, history: list[torch.Tensor], layer: int, new: torch.Tensor
    ) -> torch.Tensor:
        if self._needs.kv_dtype == "float8_e4m3fn":
            new = rounded_to_8_bits(new, self._needs.kv_scale)
        if layer == len(history):
            history.append(new)
        else:
            history[layer] = torch.cat([history[layer], new], dim=1)
        return history[layer]


def attend(
    attention: Attention, needs: AttentionNeeds, qkv: torch.Tensor
) -> torch.Tensor:
    """Run all layers of a step that was begun.

    Args:
        attention: whose device ``qkv`` is on.
        needs: its sizes.
        qkv: see ``HistoryStep``.

    Returns:
        ``[layers, N, num_heads * head_dim]``; NaN where nothing was written.
    """
    shape = (*qkv.shape[:2], needs.num_heads * needs.head_dim)
    outputs = qkv.new_full(shape, torch.nan)
    for layer, rows in enumerate(qkv):
        attention.attend(layer, rows, outputs[layer])
    return outputs


def rounded_to_8_bits(numbers: torch.Tensor, scale: float) -> torch.Tensor:
    """As 8-bit floats with a scale hold them: true numbers again, float64."""
    stored = (numbers / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return stored.double() * scale


def _sees(num_new: int, num_all: int, window: int | None) -> torch.Tensor:
    """Which tokens each of the last ones attends to: bool ``[num_new, num_all]``."""
    first = num_all - num_new
    sees = torch.ones(num_new, num_all, dtype=torch.bool).tril(first)
    return sees if window is None else sees.triu(first - window + 1)
