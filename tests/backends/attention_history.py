"""Sequences that grow step by step, and dense attention over all that they had.

The oracle of paged attention: it keeps every K and V as it was given and attends with
torch's own function in float64; of blocks it knows only which to name in the plan.
"""

from dataclasses import dataclass, field

import torch
from torch.nn.functional import scaled_dot_product_attention

from hybrid.backends.trtllm.attention import Attention, AttentionNeeds
from hybrid.bridge import pack_batch
from hybrid.scheduler import GenerateRequest, SamplingParams, ScheduledRequest, StepPlan

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


class AttentionHistory:
    """Runs steps through an implementation and compares them with dense attention."""

    def __init__(
        self, needs: AttentionNeeds, prompts: dict[str, int], num_blocks: int
    ) -> None:
        self._needs = needs
        self._free = list(range(1, num_blocks))
        self._sequences = {name: _Sequence(length) for name, length in prompts.items()}
        self._step = 0
        self._generator = torch.Generator().manual_seed(0)

    def plan(self, *shares: Share) -> StepPlan:
        """Schedule tokens, contexts first; blocks are given in a scattered order."""
        entries = []
        for name, count, _ in shares:
            sequence = self._sequences[name]
            while len(sequence.block_ids) * self._needs.block_size < (
                sequence.num_tokens + count
            ):
                block = self._free.pop(7 * len(self._free) // 11)
                sequence.block_ids = (*sequence.block_ids, block)
            request = GenerateRequest(
                name, (1,) * sequence.prompt_len, SamplingParams()
            )
            entries.append(
                ScheduledRequest(
                    request,
                    0,
                    (1,) * count,
                    sequence.num_tokens,
                    sequence.block_ids,
                    1,
                    1,
                )
            )
        num_contexts = sum(is_context for *_, is_context in shares)
        self._step += 1
        return StepPlan(self._step, tuple(entries), num_contexts, (), (), ())

    def run(self, attention: Attention, *shares: Share) -> None:
        """One step over all layers; each answer is the dense one's, rounded."""
        plan = self.plan(*shares)
        attention.begin_step(plan, pack_batch(plan))
        needs, dtype = self._needs, getattr(torch, self._needs.dtype)
        width = (needs.num_heads + 2 * needs.num_kv_heads) * needs.head_dim
        for layer in range(len(needs.windows)):
            shape = (plan.num_scheduled_tokens, width)
            qkv = torch.randn(shape, generator=self._generator).to(dtype)
            output = torch.full((len(qkv), needs.num_heads * needs.head_dim), torch.nan)
            output = output.to(dtype)
            attention.attend(layer, qkv, output)
            expected = self._expected(layer, qkv, shares)
            torch.testing.assert_close(output, expected.to(dtype))
        for name, count, _ in shares:
            self._sequences[name].num_tokens += count

    def stored(self, name: str, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What a sequence's K and V are: float64 ``[num_kv_heads, tokens, dims]``."""
        sequence = self._sequences[name]
        return sequence.keys[layer], sequence.values[layer]

    def block_ids(self, name: str) -> tuple[int, ...]:
        """A sequence's block table."""
        return self._sequences[name].block_ids

    def _expected(
        self, layer: int, qkv: torch.Tensor, shares: tuple[Share, ...]
    ) -> torch.Tensor:
        needs = self._needs
        heads = qkv.double().view(len(qkv), -1, needs.head_dim).transpose(0, 1)
        sizes = (needs.num_heads, needs.num_kv_heads, needs.num_kv_heads)
        answers, start = [], 0
        for name, count, _ in shares:
            rows = heads[:, start : start + count]
            start += count
            queries, new_keys, new_values = rows.split(sizes)
            sequence = self._sequences[name]
            keys = self._append(sequence.keys, layer, new_keys)
            values = self._append(sequence.values, layer, new_values)
            num_all = keys.shape[1]
            sees = torch.ones(count, num_all, dtype=torch.bool).tril(num_all - count)
            answer = scaled_dot_product_attention(
                queries[None],
                keys[None],
                values[None],
                attn_mask=sees,
                scale=needs.scale,
                enable_gqa=True,
            )
            answers.append(answer[0].transpose(0, 1).reshape(count, -1))
        return torch.cat(answers)

    def _append(
        self, history: list[torch.Tensor], layer: int, new: torch.Tensor
    ) -> torch.Tensor:
        needs = self._needs
        if needs.kv_dtype == "float8_e4m3fn":
            scaled = (new / needs.kv_scale).clamp(-448, 448).to(torch.float8_e4m3fn)
            new = scaled.double() * needs.kv_scale
        if layer == len(history):
            history.append(new)
        else:
            history[layer] = torch.cat([history[layer], new], dim=1)
        return history[layer]
