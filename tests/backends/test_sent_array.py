"""What the host writes for a device is not written again before it is copied."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hybrid.backends.pytorch.kv_pool import KVPool
from hybrid.backends.trtllm import sent_array
from hybrid.backends.trtllm.decode_graphs import CapturedStep, DecodeGraphs
from hybrid.backends.trtllm.engine_tensors import EngineTensors
from hybrid.backends.trtllm.executor import TrtllmExecutor
from hybrid.backends.trtllm.flashinfer_step import DeviceStep
from hybrid.backends.trtllm.sent_array import SentArray
from hybrid.backends.trtllm.thop_tables import ThopTables
from hybrid.backends.trtllm.torch_attention import TorchAttention
from hybrid.bridge import KVLayout, KVOrder, pack_batch
from hybrid.bridge.trtllm_pools import TrtllmPools
from hybrid.scheduler.plan import StepPlan
from hybrid.testing import write_tiny_model
from tests.backends.engine_plans import DECODE, FIRST, LONG, MIXED, entry, plan_of
from tests.backends.lagging_copier import LaggingCopiers, UnawaitedCopier
from tests.backends.thop_stand import thop_needs
from tests.backends.trtllm_stand import load_trtllm

CPU = torch.device("cpu")
NEEDS = thop_needs(block_size=32)
LAYOUT = KVLayout(8, 2, 2, 32, 8, "float32", KVOrder.BLOCK_FIRST)
LATER = plan_of(0, entry("long", LONG, (9,), (4, 5), past=41))
PLANS = (FIRST, MIXED, DECODE, LATER, DECODE)
"""Every step differs from the one before in lengths, tokens and tables."""


@pytest.fixture
def copiers(monkeypatch: pytest.MonkeyPatch) -> Iterator[LaggingCopiers]:
    """A device that lags behind; in the end it has copied what it was asked to."""
    made = LaggingCopiers()
    monkeypatch.setattr(sent_array, "copier_for", made.new)
    yield made
    assert made.made, "nobody sent anything"
    made.catch_up()


def array(*numbers: int) -> Any:
    """Make a row to be sent."""
    return np.array(numbers, np.int32)


def test_rows_are_put_where_they_always_are() -> None:
    """Of other lengths, at the same addresses, and no more than was given."""
    sent = SentArray.zeros((2, 4), torch.int32, CPU)
    first = sent.put(array(1, 2, 3), array(4))
    assert [row.tolist() for row in first] == [[1, 2, 3], [4]]
    second = sent.put(array(7), array(8, 9))
    assert [row.tolist() for row in second] == [[7], [8, 9]]
    assert sent.device.tolist() == [[7, 2, 3, 0], [8, 9, 0, 0]]
    for one, other in zip(first, second, strict=True):
        assert one.data_ptr() == other.data_ptr()


def test_the_twin_is_another_array_and_has_what_was_sent() -> None:
    """Also on the CPU; rows that were not named are not sent."""
    host = np.zeros((4, 2), np.int32)
    sent = SentArray(host, CPU)

    def write() -> list[int]:
        host[:] = 5
        return [0, 1, 3]

    sent.rewrite(write)
    assert sent.device.tolist() == [[5, 5], [5, 5], [0, 0], [5, 5]]


def test_a_larger_one_is_made_when_it_is_needed() -> None:
    """And kept for steps that are smaller again."""
    sent = SentArray.zeros((2, 4), torch.int64, CPU)
    assert sent.at_least(4) is sent
    larger = sent.at_least(5)
    assert larger.device.shape == (2, 8)
    assert larger.device.dtype == torch.int64
    assert larger.at_least(3) is larger


def test_an_array_is_written_when_its_copies_are_over(copiers: LaggingCopiers) -> None:
    """Put, rewritten or outgrown; the device has each in its turn."""
    sent = SentArray.zeros((1, 2), torch.int32, CPU)
    sent.put(array(1, 2))
    (copier,) = copiers.made
    assert sent.device.tolist() == [[0, 0]]
    sent.put(array(3, 4))
    assert sent.device.tolist() == [[1, 2]]
    sent.at_least(3).put(array(5))
    assert sent.device.tolist() == [[3, 4]]
    assert not copier.under_way


def test_a_missing_wait_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the device that these tests have."""
    copiers = LaggingCopiers(UnawaitedCopier)
    monkeypatch.setattr(sent_array, "copier_for", copiers.new)
    sent = SentArray.zeros((1, 2), torch.int32, CPU)
    sent.put(array(1, 2))
    sent.put(array(3, 4))
    with pytest.raises(AssertionError, match="while a copy was under way"):
        copiers.catch_up()


def test_on_a_gpu_an_event_behind_the_copies_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the copies themselves are not."""
    calls: list[str] = []

    class Event:
        """What torch's does, in words."""

        def record(self) -> None:
            """Behind what was enqueued."""
            calls.append("record")

        def synchronize(self) -> None:
            """Until the device has come to it."""
            calls.append("wait")

    def copy(_: object, source: object, *, non_blocking: bool) -> None:
        assert non_blocking
        calls.append(f"copy {source}")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    target: Any = type("Target", (), {"copy_": copy})()
    source: Any = "a row"
    copier = sent_array.copier_for(torch.device("cuda"))
    copier.copy(target, source)
    copier.mark()
    copier.wait()
    assert calls == ["copy a row", "record", "wait"]


@pytest.mark.gpu
def test_a_gpu_that_lags_behind_gets_each_in_its_turn() -> None:
    """From pinned memory, which is not written while the GPU has other things to do."""
    device = torch.device("cuda")
    sent = SentArray.zeros((1, 4), torch.int64, device)
    seen = []
    for number in range(3):
        torch.cuda._sleep(10**8)
        seen.append(sent.put(array(*[number] * 4))[0].clone())
    assert [one.tolist() for one in seen] == [[number] * 4 for number in range(3)]


Update = Callable[[StepPlan], Any]


def thop_update() -> Update:
    """Tables and lengths of TensorRT-LLM's operator."""
    tables = ThopTables(TrtllmPools.single(LAYOUT), NEEDS, CPU)
    return lambda plan: (tables.update(plan, pack_batch(plan)), tables.device_offsets)


def flashinfer_update() -> Update:
    """Those of FlashInfer's kernels, and slots."""
    step = DeviceStep(replace(NEEDS, max_num_seqs=4), CPU)

    def update(plan: StepPlan) -> Any:
        step.update(plan, pack_batch(plan))
        return step.slots, vars_of(step.contexts), vars_of(step.generations)

    return update


def engine_update() -> Update:
    """An engine's inputs."""
    tensors = EngineTensors(
        KVPool(LAYOUT, CPU), max_num_seqs=4, max_num_tokens=64, max_model_len=96
    )
    return lambda plan: {
        name: tensor
        for name, tensor in tensors.fill(plan, pack_batch(plan)).items()
        if name != "host_kv_cache_pool_pointers"
    }


def vars_of(part: Any) -> Any:
    """Fields of a slotted data class, or nothing."""
    return part and [getattr(part, name) for name in part.__slots__]


def copied(given: Any) -> Any:
    """The numbers of now, in lists."""
    if isinstance(given, torch.Tensor):
        return given.tolist()
    if isinstance(given, dict):
        return {name: copied(value) for name, value in given.items()}
    if isinstance(given, Sequence):
        return [copied(value) for value in given]
    return given


@pytest.mark.parametrize("make", [thop_update, flashinfer_update, engine_update])
def test_steps_that_nobody_waits_for_reach_the_device(
    make: Callable[[], Update], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, without logits between; the last has its own numbers."""
    at_once = make()
    expected = [copied(at_once(plan)) for plan in PLANS]
    copiers = LaggingCopiers()
    monkeypatch.setattr(sent_array, "copier_for", copiers.new)
    late = make()
    for plan, numbers in zip(PLANS, expected, strict=True):
        given = late(plan)
        if plan is PLANS[-1]:
            copiers.catch_up()
            assert copied(given) == numbers
    assert copiers.made


def test_a_models_inputs_reach_the_device(
    tmp_path: Path, copiers: LaggingCopiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids, positions, and rows where not all are wanted; a chunk without any."""
    executor = load_trtllm(write_tiny_model(tmp_path, "llama"), block_size=32).executor
    assert isinstance(executor, TrtllmExecutor)
    runner: Any = executor._runner
    given: list[tuple[torch.Tensor, ...]] = []

    def forward(*inputs: torch.Tensor) -> torch.Tensor:
        given.append(inputs)
        return torch.zeros(0, 320)

    monkeypatch.setattr(runner, "_forward", forward)
    for plan in (plan_of(1, FIRST.scheduled[0]), FIRST, MIXED, DECODE):
        runner.run(plan)
    copiers.catch_up()
    assert [len(inputs) for inputs in given] == [3, 3, 3, 2]
    assert copied(given[-1]) == [[201, 88], [40, 6]]


def test_captured_steps_inputs_reach_the_device(
    copiers: LaggingCopiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids and positions of a decode step, of which those before may lag."""
    attention = TorchAttention(NEEDS, KVPool(LAYOUT, CPU))
    monkeypatch.setattr(attention, "captured", lambda _: pytest.MonkeyPatch.context())
    seen: list[tuple[torch.Tensor, ...]] = []

    def forward(*inputs: torch.Tensor) -> torch.Tensor:
        seen.append(inputs)
        return torch.zeros(2, 320)

    def capture(launch: Callable[[], torch.Tensor]) -> CapturedStep:
        return CapturedStep(lambda: None, launch())

    graphs = DecodeGraphs(forward, attention, 2, CPU, lambda: capture)
    later = [
        one._replace(token_ids=(3,), num_computed_tokens=one.num_computed_tokens + 1)
        for one in DECODE.scheduled
    ]
    for plan in (DECODE, plan_of(0, *later)):
        graphs.run(plan)
    copiers.catch_up()
    assert copied(seen) == [[[3, 3], [41, 7]]]
