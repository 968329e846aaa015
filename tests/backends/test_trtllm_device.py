"""Which GPU the tensorrt_llm executor computes on, and what memory it leaves there."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hybrid.backends.interface import ExecutorConfig, ModelInfo
from hybrid.backends.pytorch.kv_pool import KVPool
from hybrid.backends.trtllm import executor as executor_module
from hybrid.backends.trtllm.executor import TrtllmExecutor
from hybrid.backends.trtllm.flashinfer_attention import FlashInferAttention
from hybrid.backends.trtllm.machine import Machine
from hybrid.backends.trtllm.model_runner import ModelRunner
from hybrid.backends.trtllm.runner import CacheSizes, Runner
from hybrid.backends.trtllm.thop_attention import ThopAttention
from hybrid.bridge import KVLayout, KVOrder
from hybrid.scheduler import StepPlan
from hybrid.testing import write_tiny_model
from tests.backends import standin_flashinfer, trtllm_standin
from tests.backends.standin_session import installed_runtime
from tests.backends.thop_stand import thop_needs
from tests.backends.trt_engine_stand import open_engine
from tests.backends.trtllm_stand import load_trtllm

FREE = 10**9
MIB = 2**20


class Noting(Runner):
    """Notes on which GPU it is called."""

    def __init__(self, current: list[int | None]) -> None:
        self.current = current
        self.calls: list[tuple[str, int | None]] = []
        self.reserved = 0

    def note(self, name: str) -> None:
        """Remember a call."""
        self.calls.append((name, self.current[-1]))

    @property
    def info(self) -> ModelInfo:
        """Whatever."""
        return ModelInfo(architecture="", vocab_size=3, max_model_len=9)

    @property
    def cache(self) -> CacheSizes:
        """A small one."""
        return CacheSizes(num_layers=1, num_kv_heads=1, head_dim=8, dtype="float32")

    @property
    def reserved_bytes(self) -> int:
        """As the test says."""
        return self.reserved

    def make_pool(self, num_blocks: int) -> KVPool:
        """On the CPU."""
        self.note("make_pool")
        layout = KVLayout(num_blocks, 1, 1, 16, 8, "float32", KVOrder.BLOCK_FIRST)
        return KVPool(layout, torch.device("cpu"))

    def run(self, plan: StepPlan) -> torch.Tensor:
        """No rows."""
        del plan
        self.note("run")
        return torch.zeros(0, 3)

    def close(self) -> None:
        """Once."""
        self.note("close")


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Current GPUs of this thread, the innermost last; without any GPU."""
    entered: list[int | None] = [0]

    @contextmanager
    def device(index: int | None) -> Iterator[None]:
        entered.append(index)
        yield
        entered.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    return entered


def test_every_call_is_on_the_gpu_that_was_asked_about(
    current: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever is current where the caller is, and that stays as it was."""
    executor = TrtllmExecutor(Machine(("cuda", "cpu"), (9, 0), gpu_index=3))
    noting = Noting(current)

    def make(*_: object) -> Noting:
        noting.note("load")
        return noting

    def free(device: torch.device) -> int:
        noting.note(f"free {device}")
        return FREE

    monkeypatch.setattr(executor, "_make_runner", make)
    monkeypatch.setattr(executor_module, "free_memory_bytes", free)
    source: Any = type("Source", (), {"format": None})
    executor.load(source, ExecutorConfig(device="cuda"))
    executor.kv_spec()
    executor.allocate_kv(2)
    executor.execute(StepPlan(0, (), 0, (), (), ()))
    executor.close()
    names = ("load", "free cuda", "make_pool", "run", "close")
    assert noting.calls == [(name, 3) for name in names]
    assert current == [0]


def test_on_a_cpu_no_gpu_is_entered(current: list[int | None]) -> None:
    """Nor asked for, though the machine has one."""
    machine = Machine(("cuda", "cpu"), (9, 0), gpu_index=3)
    with machine.using("cpu"):
        assert current == [0]


def test_the_gpu_that_is_asked_about_is_the_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its generation and its number belong together."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", {2: (12, 0), None: (8, 0)}.get
    )
    assert Machine.detect() == Machine(("cuda", "cpu"), (12, 0), gpu_index=2)


@pytest.mark.parametrize(("reserved", "left"), [(1, FREE - 1), (FREE + 1, 0)])
def test_memory_that_is_taken_after_the_pool_is_not_offered_to_it(
    monkeypatch: pytest.MonkeyPatch, reserved: int, left: int
) -> None:
    """And never less than none."""
    executor = TrtllmExecutor(Machine(("cpu",), None))
    noting = Noting([None])
    noting.reserved = reserved
    monkeypatch.setattr(executor, "_runner", noting)
    monkeypatch.setattr(executor_module, "free_memory_bytes", lambda _: FREE)
    assert executor.kv_spec().available_bytes == left


def test_a_model_reserves_workspaces_and_what_graphs_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever attends; graphs only where steps are captured."""
    executor: Any = load_trtllm(write_tiny_model(tmp_path, "llama")).executor
    runner: ModelRunner = executor._runner
    assert runner.reserved_bytes == 0
    for attention in (ThopAttention, FlashInferAttention):
        monkeypatch.setattr(runner, "_attention_class", attention)
        assert runner.reserved_bytes == 256 * MIB
    monkeypatch.setattr(runner, "_device", torch.device("cuda"))
    monkeypatch.setattr(runner, "_needs", replace(runner._needs, max_num_seqs=5))
    logits = (1 + 2 + 4 + 5) * 320 * 4
    assert runner.reserved_bytes == 256 * MIB + logits
    monkeypatch.setattr(runner, "_options", replace(runner._options, cuda_graphs=False))
    assert runner.reserved_bytes == 256 * MIB


@pytest.mark.parametrize("attention", [ThopAttention, FlashInferAttention])
def test_workspaces_are_as_large_as_was_told(attention: type[Any]) -> None:
    """What is reserved is what is taken."""
    needs = thop_needs(compute_capability=(9, 0))
    layout = KVLayout(4, 2, 2, 16, 16, "float32", KVOrder.BLOCK_FIRST)
    with trtllm_standin.installed("1.2.1"), standin_flashinfer.installed((9, 0)):
        made = attention(needs, KVPool(layout, torch.device("cpu")))
    taken = [value.nbytes for name, value in vars(made).items() if "workspace" in name]
    assert sum(taken) == attention.workspace_bytes(needs)


def test_an_engine_reserves_its_largest_input(tmp_path: Path) -> None:
    """A number for each place of each sequence, whatever else a step is told."""
    weights = write_tiny_model(tmp_path / "weights", "llama")
    with installed_runtime(), closing(open_engine(weights, tmp_path / "e")) as runner:
        assert runner.reserved_bytes == 8 * 128 * 4
        runner.make_pool(4)
        assert runner._tensors is not None
        assert runner._tensors._cache_indirection.nbytes == runner.reserved_bytes
