"""The checks of whoever attends hold of stand-ins, and see what is wrong of them."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from hybrid.backends.trtllm.attention import Attention
from hybrid.backends.trtllm.decode_graphs import CapturedStep
from hybrid.backends.trtllm.flashinfer_attention import FlashInferAttention
from hybrid.backends.trtllm.machine import Machine
from hybrid.backends.trtllm.thop_attention import ThopAttention
from hybrid.backends.trtllm.torch_attention import TorchAttention
from hybrid.bridge import PackedBatch
from hybrid.scheduler import StepPlan
from tests.backends import standin_flashinfer, trtllm_standin
from tests.backends.thop_stand import MACHINE
from tests.gpu import attention_checks
from tests.gpu.attention_checks import (
    DTYPE,
    LIMITS,
    check_steps,
    compare_steps,
    steps_needs,
)
from tests.gpu.capturable_attention import CapturableAttention
from tests.gpu.device_check import Setting, run_check

HERE = Setting("cpu", Path())
CLASSES = {
    "torch": TorchAttention,
    "flashinfer": FlashInferAttention,
    "thop": ThopAttention,
}
KINDS = ["whole", "chunks", "mixed", "prefix", "decode"]


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine where all kernels run on the CPU."""
    monkeypatch.setattr(Machine, "detect", lambda: MACHINE)
    with ExitStack() as stack:
        stack.enter_context(trtllm_standin.installed("1.2.1"))
        stack.enter_context(standin_flashinfer.installed((9, 0)))
        yield


def relaunch(launch: Callable[[], torch.Tensor]) -> CapturedStep:
    """Stand in for a graph: a replay launches again, into the same output.

    As of a graph, nothing that is computed while it is recorded counts.
    """
    output = torch.full_like(launch(), float("nan"))

    def replay() -> None:
        output.copy_(launch())

    return CapturedStep(replay, output)


def compare(
    attention: type[Attention], kv_dtype: str = DTYPE, window: int | None = None
) -> str:
    """Run all kinds of steps, a replay launching again."""
    needs = steps_needs(HERE, MACHINE, kv_dtype, window)
    return compare_steps(attention, needs, lambda: relaunch)


@pytest.mark.parametrize("kv_dtype", LIMITS)
@pytest.mark.parametrize("name", CLASSES)
def test_every_kind_of_step_holds(name: str, kv_dtype: str) -> None:
    """The row tells each kind's error, over a pool of zeros and one of NaN."""
    told = check_steps(HERE, name, kv_dtype)
    assert re.findall(r"(\w+) \d+\.\d%", told) == KINDS
    assert told.endswith("off float64, over zeros and NaN")
    # Far from the limit, or a fault could hide below it.
    worst = max(float(error) for error in re.findall(r"([\d.]+)%", told))
    assert 0 < worst < 100 * LIMITS[kv_dtype] / 2


@pytest.mark.parametrize("attention", [ThopAttention, CapturableAttention])
def test_decode_steps_are_replayed_between_eager_ones(
    attention: type[Attention],
) -> None:
    """Where there is a capture; of the largest size, and padded."""
    assert re.findall(r"(\w+) \d+\.\d%", compare(attention)) == [*KINDS, "graph"]


def test_an_implementation_that_cannot_serve_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the words of its refusal."""
    monkeypatch.setattr(Machine, "detect", lambda: Machine(("cpu",), None))
    row = run_check("some", lambda s: check_steps(s, "thop", DTYPE), HERE)
    assert row.result.startswith("skipped: its kernels need a cuda device")


def spoil_argument(name: str, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Make a wrapper of a stand-in's call that changes one argument."""

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        def other(*args: Any, **given: Any) -> Any:
            if name in given:
                given[name] = change(given[name])
            return call(*args, **given)

        return other

    return wrapped


FAULTS: dict[str, tuple[str, Any, str, str]] = {
    # Name of the kernel, its argument, the fault, and the kinds that must see it.
    "scores": ("_prefill_kernel", "bmm1_scale", lambda x: x * 1.3, "prefix"),
    "values": ("_decode_kernel", "bmm2_scale", lambda x: x * 1.3, "decode"),
    "window": ("_decode_kernel", "window_left", lambda _: -1, "decode"),
    "block": ("_decode_kernel", "block_tables", lambda x: x.roll(1, 1), "mixed"),
}


@pytest.mark.parametrize("kv_dtype", LIMITS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_kernel_that_is_told_something_wrong_is_seen(
    fault: str, kv_dtype: str
) -> None:
    """Over caches of both kinds, by the steps that it serves."""
    kernel, argument, change, kind = FAULTS[fault]

    class Spoilt(FlashInferAttention):
        """Calls one kernel wrongly."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            own = getattr(self, kernel)
            setattr(self, kernel, spoil_argument(argument, change)(own))

    with pytest.raises(AssertionError, match=rf"{kind} over zeros [\d.]+%"):
        compare(Spoilt, kv_dtype, attention_checks.WINDOW)


class ForgetsPast(TorchAttention):
    """Lets contexts see their step's tokens alone, as kernels of no paged cache do."""

    def begin_step(self, plan: StepPlan, batch: PackedBatch) -> None:
        """Note how many tokens the first context has."""
        super().begin_step(plan, batch)
        self._num_rows = len(plan.scheduled[0].token_ids) if plan.num_contexts else 0

    def attend(self, layer: int, qkv: torch.Tensor, output: torch.Tensor) -> None:
        """Answer for the first context anew."""
        super().attend(layer, qkv, output)
        heads = qkv[: self._num_rows].view(self._num_rows, 15, 64).transpose(0, 1)
        queries, keys, values = heads.split((9, 3, 3))
        found = scaled_dot_product_attention(
            queries[None], keys[None], values[None], is_causal=True, enable_gqa=True
        )
        output[: self._num_rows] = found[0].transpose(0, 1).flatten(1)


class ReadsUnwritten(CapturableAttention):
    """Weighs slots that nobody has written with 0, as 0 * NaN."""

    def attend(self, layer: int, qkv: torch.Tensor, output: torch.Tensor) -> None:
        """Add them all."""
        super().attend(layer, qkv, output)
        output += 0 * self._pool.memory.float().sum().to(output.dtype)


class Raises(TorchAttention):
    """Cannot do one of the steps."""

    def attend(self, layer: int, qkv: torch.Tensor, output: torch.Tensor) -> None:
        """Fail at the first mixed step, by how many tokens it has."""
        super().attend(layer, qkv, output)
        if len(qkv) == 35:
            raise RuntimeError("illegal memory access")


class StaleLengths(CapturableAttention):
    """Leaves lengths where launches read them as the first decode step had them."""

    def begin_step(self, plan: StepPlan, batch: PackedBatch) -> None:
        """Bring everything else."""
        lens = self._lens.clone()
        super().begin_step(plan, batch)
        if self._is_decode and lens.any():
            self._lens.copy_(lens)


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        (
            ForgetsPast,
            r"^chunks over zeros [\d.]+%, mixed over zeros .*, prefix over zeros",
        ),
        (ReadsUnwritten, r"^whole over NaN nan%"),
        (Raises, "mixed over zeros RuntimeError: illegal memory access, mixed over"),
        (StaleLengths, r"graph over zeros [\d.]+%"),
    ],
)
def test_an_attention_that_is_broken_is_seen(
    attention: type[Attention], message: str
) -> None:
    """The row names the steps, the pool and how far off they were."""
    with pytest.raises(AssertionError, match=message):
        compare(attention)
