"""Checks of whoever attends, by itself: every kind of step over a spoilt pool.

The oracle is dense attention in float64 on the host, over K and V as the cache holds
them. Numbers are lengths of errors beside lengths of answers, of one token's one head.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

import pytest
import torch

from hybrid.backends.pytorch.kv_pool import KVPool
from hybrid.backends.trtllm.attention import Attention, AttentionNeeds
from hybrid.backends.trtllm.decode_graphs import (
    Capture,
    DecodeGraphs,
    cuda_graph_capture,
)
from hybrid.backends.trtllm.machine import Machine
from hybrid.backends.trtllm.probe import IMPLEMENTATIONS
from hybrid.backends.trtllm.scaled_kv_pool import FP8, make_pool
from hybrid.bridge import KVOrder, pack_batch
from hybrid.failure_reason import failure_reason
from tests.backends.attention_history import AttentionHistory, HistoryStep, attend
from tests.gpu.capturable_attention import CapturableAttention
from tests.gpu.device_check import Setting

DTYPE: Final = "bfloat16"
BLOCK_SIZE: Final = 32
NUM_BLOCKS: Final = 40
MAX_NUM_SEQS: Final = 5
WINDOW: Final = 40
LIMITS: Final = {DTYPE: 0.03, FP8: 0.2}
"""Largest error by the cache's dtype. Rounding to bfloat16 gives up to 1 %. Kernels of
an 8-bit cache may round queries and weights to 8 bits, too, each of which gives up to
8 %. A token too many or too few among n gives one part in the root of n, and more to
the unluckiest of many."""
POOLS: Final = {"zeros": 0x00, "NaN": 0xFF}
"""By what each byte is: 0xFF is NaN in every float there is."""
NUM_DECODE_STEPS: Final = 10
NewCapture = Callable[[], Capture]


def check_steps(setting: Setting, attention: str, kv_dtype: str) -> str:
    """Chunks, cached prefixes, mixed and decode steps, the latter also as graphs."""
    machine = Machine.detect()
    implementation = IMPLEMENTATIONS[attention]()
    # Not every implementation has windows; the layers beside it have none.
    window = None if attention == "thop" else WINDOW
    needs = steps_needs(setting, machine, kv_dtype, window)
    reason = implementation.refusal(machine, needs)
    if reason is not None:
        pytest.skip(reason)
    captures = setting.device == "cuda" and implementation.can_capture
    return compare_steps(
        implementation, needs, cuda_graph_capture if captures else None
    )


def check_capture(setting: Setting) -> str:
    """Graphs, their padding and our scatter kernel, where no library is installed."""
    setting.need_cuda()
    needs = steps_needs(setting, Machine.detect(), DTYPE, None)
    return compare_steps(CapturableAttention, needs, cuda_graph_capture)


def steps_needs(
    setting: Setting, machine: Machine, kv_dtype: str, window: int | None
) -> AttentionNeeds:
    """SmolLM2's heads on three layers.

    Args:
        setting: where.
        machine: whose kernels.
        kv_dtype: of the pool.
        window: of the second layer.
    """
    return AttentionNeeds(
        device=setting.device,
        dtype=DTYPE,
        kv_dtype=kv_dtype,
        block_size=BLOCK_SIZE,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        windows=(None, window, None),
        max_model_len=256,
        max_num_seqs=MAX_NUM_SEQS,
        scale=0.125,
        # One number in forty is beyond 448 times this: it must become that.
        kv_scale=0.005 if kv_dtype == FP8 else 1.0,
        compute_capability=machine.compute_capability,
    )


@torch.inference_mode()
def compare_steps(
    implementation: type[Attention],
    needs: AttentionNeeds,
    new_capture: NewCapture | None,
) -> str:
    """Run the same steps over pools full of zeros and of NaN.

    Args:
        implementation: whose answers.
        needs: sizes and dtypes.
        new_capture: for graphs; ``None``: all steps are eager.

    Raises:
        AssertionError: tells each kind of step that was wrong, and over which pool.
    """
    errors = {
        name: _errors_over(byte, implementation, needs, new_capture)
        for name, byte in POOLS.items()
    }
    limit = LIMITS[needs.kv_dtype]
    faults = [
        f"{kind} over {pool} {told}"
        for pool, found in errors.items()
        for kind, told in found.faults(limit).items()
    ]
    assert not faults, ", ".join(faults)
    return f"{errors['NaN']} off float64, over {' and '.join(POOLS)}"


@dataclass(frozen=True, slots=True)
class StepErrors:
    """What came of the steps over one pool."""

    largest: dict[str, float] = field(default_factory=dict)
    """By kind of step; NaN where an answer was."""
    raised: dict[str, str] = field(default_factory=dict)
    """By kind of step, what ended them all."""

    def note(self, kind: str, found: torch.Tensor, one: HistoryStep, size: int) -> None:
        """Compare answers; ``size`` numbers are one token's one head."""
        expected = one.expected.unflatten(-1, (-1, size))
        errors = found.cpu().double().view_as(expected) - expected
        error = (errors.norm(dim=-1) / expected.norm(dim=-1)).max()
        known = torch.tensor(self.largest.get(kind, 0.0), dtype=error.dtype)
        # Unlike max(), it lets no NaN fall under the table.
        self.largest[kind] = float(torch.maximum(known, error))

    def faults(self, limit: float) -> dict[str, str]:
        """What was not within a limit, by kind of step."""
        wrong = {k: f"{e:.1%}" for k, e in self.largest.items() if not e <= limit}
        return wrong | self.raised

    def __str__(self) -> str:
        return ", ".join(f"{kind} {error:.1%}" for kind, error in self.largest.items())


def _errors_over(
    byte: int,
    implementation: type[Attention],
    needs: AttentionNeeds,
    new_capture: NewCapture | None,
) -> StepErrors:
    pool = make_pool(needs, NUM_BLOCKS)
    fill(pool, byte)
    result, kind = StepErrors(), "start"
    history = AttentionHistory(needs, {"a": 97, "b": 64, "c": 29}, NUM_BLOCKS)
    try:
        with closing(implementation(needs, pool)) as attention:
            replay = (
                None if new_capture is None else _Replay(attention, needs, new_capture)
            )
            for kind, one in _steps(history, with_graphs=replay is not None):
                if kind.startswith("graph"):
                    assert replay is not None
                    found = replay(one)
                else:
                    attention.begin_step(one.plan, pack_batch(one.plan))
                    found = attend(attention, needs, one.qkv.to(needs.device))
                result.note(kind, found, one, needs.head_dim)
    except Exception as error:  # noqa: BLE001 - what was found before is told, too
        result.raised[kind] = failure_reason(error)
    return result


def fill(pool: KVPool, byte: int) -> None:
    """Make every byte of a pool this, but in the null block, which is always finite."""
    assert pool.layout.order is KVOrder.BLOCK_FIRST
    pool.memory[1:].view(torch.uint8).fill_(byte)


def _steps(
    history: AttentionHistory, *, with_graphs: bool
) -> Iterator[tuple[str, HistoryStep]]:
    """Every kind there is, with its name; chunks end where blocks do, as the plans'."""
    yield "whole", history.step(("b", 64, True))
    yield "chunks", history.step(("a", 32, True), ("c", 29, True))
    yield "chunks", history.step(("a", 32, True))
    yield "mixed", history.step(("a", 33, True), ("b", 1, False), ("c", 1, False))
    history.begin("d", 90, like="a", num_cached=64)
    history.begin("e", 65, like="b", num_cached=64)
    yield "prefix", history.step(("d", 26, True))
    generations = [(name, 1, False) for name in "abcde"]
    yield "mixed", history.step(("e", 1, True), *generations[:4])
    # The first steps are of the largest size there is, the others are padded.
    for num_seqs in (MAX_NUM_SEQS, 3):
        for step in range(NUM_DECODE_STEPS):
            # By turns: what one leaves unwritten, the other misses.
            kind = "graph" if with_graphs and step % 2 else "decode"
            yield kind, history.step(*generations[:num_seqs])


class _Replay:
    """Answers decode steps as the executor does: captured once, then replayed."""

    def __init__(
        self, attention: Attention, needs: AttentionNeeds, new_capture: NewCapture
    ) -> None:
        self._attention: Final = attention
        self._needs: Final = needs
        width = (needs.num_heads + 2 * needs.num_kv_heads) * needs.head_dim
        # Where the model's projections would leave them.
        self._qkv: Final = torch.zeros(
            (len(needs.windows), needs.max_num_seqs, width),
            dtype=getattr(torch, needs.dtype),
            device=needs.device,
        )
        self._graphs: Final = DecodeGraphs(
            self._forward,
            attention,
            needs.max_num_seqs,
            torch.device(needs.device),
            new_capture,
        )

    def __call__(self, one: HistoryStep) -> torch.Tensor:
        """``[layers, N, num_heads * head_dim]``."""
        assert self._graphs.takes(one.plan)
        self._qkv[:, : one.qkv.shape[1]].copy_(one.qkv)
        return self._graphs.run(one.plan).transpose(0, 1)

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        del positions  # rotated already
        found = attend(self._attention, self._needs, self._qkv[:, : len(ids)])
        return found.transpose(0, 1)
