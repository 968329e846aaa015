"""Captured decode steps: static inputs, padded sizes, the eager answer."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hybrid.backends.pytorch.kv_pool import KVPool
from hybrid.backends.trtllm.attention import AttentionNeeds
from hybrid.backends.trtllm.decode_graphs import (
    CapturedStep,
    DecodeGraphs,
    graph_memory_bytes,
)
from hybrid.backends.trtllm.executor import TrtllmExecutor
from hybrid.backends.trtllm.flashinfer_attention import FlashInferAttention
from hybrid.backends.trtllm.model_runner import ModelRunner
from hybrid.backends.trtllm.thop_attention import ThopAttention
from hybrid.scheduler import (
    GenerateRequest,
    SamplingParams,
    ScheduledRequest,
    StepPlan,
)
from hybrid.testing import write_tiny_model
from tests.backends import standin_flashinfer, trtllm_standin
from tests.backends.trtllm_stand import load_trtllm

MAX_NUM_SEQS = 5
CPU = torch.device("cpu")
Frozen = Callable[[], AbstractContextManager[None]]
"""Brings back, for as long as it is entered, what the host said at one time."""


class Thop(ThopAttention):
    """TensorRT-LLM's operator; notes the sizes that are captured."""

    def __init__(self, needs: AttentionNeeds, pool: KVPool) -> None:
        super().__init__(needs, pool)
        self.sizes: list[int] = []

    @contextmanager
    def captured(self, num_seqs: int) -> Iterator[None]:
        """Note it."""
        self.sizes.append(num_seqs)
        with super().captured(num_seqs):
            yield

    def freeze(self) -> Frozen:
        """Keep the arguments of now: numbers, host arrays, addresses."""
        call: Any = self._call
        then = {
            name: value.clone()
            if name.startswith("host_") and name in self._step
            else value
            for name, value in call._arguments.items()
        }
        return lambda: swapped(call, "_arguments", then)


class FlashInfer(FlashInferAttention):
    """FlashInfer's kernels; notes the sizes that are captured."""

    def __init__(self, needs: AttentionNeeds, pool: KVPool) -> None:
        super().__init__(needs, pool)
        self.sizes: list[int] = []

    @contextmanager
    def captured(self, num_seqs: int) -> Iterator[None]:
        """Note it."""
        self.sizes.append(num_seqs)
        with super().captured(num_seqs):
            yield

    def freeze(self) -> Frozen:
        """Keep the arguments of now: numbers and addresses."""
        then = self._step.generations
        return lambda: swapped(self._step, "generations", then)


class NothingFrozen(Thop):
    """Whose launches keep the lengths of the step that was recorded."""

    def captured(self, num_seqs: int) -> AbstractContextManager[None]:
        """Do nothing for the graph."""
        del num_seqs
        return nullcontext()


class NothingFrozenInFlashInfer(FlashInfer):
    """As above."""

    def captured(self, num_seqs: int) -> AbstractContextManager[None]:
        """Do nothing for the graph."""
        del num_seqs
        return nullcontext()


@contextmanager
def swapped(owner: Any, name: str, value: object) -> Iterator[None]:
    """Give an attribute another value for a while."""
    own = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, own)


class Stand:
    """A tiny model after five prompts, eager and captured."""

    def __init__(self, folder: Path, kind: type[Any]) -> None:
        executor = load_trtllm(folder, attention="torch").executor
        assert isinstance(executor, TrtllmExecutor)
        runner = executor._runner
        assert isinstance(runner, ModelRunner)
        assert executor._pool is not None
        self.runner = runner
        self.pool = executor._pool
        needs = replace(runner._needs, compute_capability=(9, 0))
        self.attention = kind(needs, self.pool)
        self.num_new_captures = 0
        runner._attention = self.attention
        self.graphs = DecodeGraphs(
            runner._forward, self.attention, MAX_NUM_SEQS, CPU, self.new_capture
        )
        prompts = [entry(index, (3, 4 + index, 5), 0) for index in range(5)]
        runner.run(StepPlan(0, tuple(prompts), 5, (), (), ()))

    def new_capture(self) -> Callable[[Callable[[], torch.Tensor]], CapturedStep]:
        """Count; see ``record``."""
        self.num_new_captures += 1
        return self.record

    def record(self, launch: Callable[[], torch.Tensor]) -> CapturedStep:
        """Stand in for a graph: a replay launches again, into the same output.

        As of a graph, nothing that is computed while it is recorded counts, and the
        host says at every replay what it said then.
        """
        output = torch.full_like(launch(), float("nan"))
        frozen = self.attention.freeze()

        def replay() -> None:
            with frozen():
                output.copy_(launch())

        return CapturedStep(replay, output)


def entry(
    index: int, token_ids: tuple[int, ...], num_computed: int, num_rows: int = 1
) -> ScheduledRequest:
    """A sequence on a block of its own."""
    request = GenerateRequest(str(index), token_ids[:1], SamplingParams())
    return ScheduledRequest(
        request, 0, token_ids, num_computed, (index + 1,), num_rows, 1
    )


def decode(num_seqs: int, step: int) -> StepPlan:
    """One token of each of the first sequences."""
    entries = [entry(index, (7 + index + step,), 3 + step) for index in range(num_seqs)]
    return StepPlan(step, tuple(entries), 0, (), (), ())


KINDS = (Thop, FlashInfer)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[type[Any]], Stand]]:
    """A model after its prompts, with the packages there."""
    write_tiny_model(tmp_path, "llama")
    with (
        trtllm_standin.installed("1.4.0rc1"),
        standin_flashinfer.installed((9, 0), allows_float32=True),
        pytest.MonkeyPatch.context() as patch,
    ):
        # No kernel has heads as small as the model's; the stand-in may.
        patch.setitem(standin_flashinfer.checks.FMHA_V2_HEAD_DIMS, 9, {16})
        yield lambda kind: Stand(tmp_path, kind)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_a_replayed_step_gives_the_eager_answer(
    make: Callable[[type[Any]], Stand], kind: type[Any]
) -> None:
    """At sizes that are captured as they are, and at those that are padded."""
    stand = make(kind)
    for step, num_seqs in enumerate((1, 2, 3, 4, 5, 3, 1)):
        plan = decode(num_seqs, step)
        captured = stand.graphs.run(plan).clone()
        eager = stand.runner.run(plan)
        torch.testing.assert_close(captured, eager, rtol=1e-4, atol=1e-3)
    # Powers of two, and what the engine allows at most; each recorded once.
    assert stand.attention.sizes == [1, 2, 4, 5]
    assert stand.num_new_captures == 1


@pytest.mark.parametrize("kind", [NothingFrozen, NothingFrozenInFlashInfer])
@torch.inference_mode()
def test_a_replay_says_what_the_host_said_when_it_was_recorded(
    make: Callable[[type[Any]], Stand], kind: type[Any]
) -> None:
    """So that lengths which nobody raised to their maxima are found out."""
    stand = make(kind)
    stand.graphs.run(decode(2, 0))
    refused = "host_past_key_value_lengths|longer than the announced"
    with pytest.raises((RuntimeError, ValueError), match=refused):
        stand.graphs.run(decode(2, 1))


@torch.inference_mode()
def test_graphs_of_memory_that_moved_are_recorded_anew(
    make: Callable[[type[Any]], Stand],
) -> None:
    """When a step between moved it, and when the recording itself did; all sizes."""
    stand = make(Thop)
    workspace = stand.attention._workspace
    stand.graphs.run(decode(1, 0))
    stand.graphs.run(decode(2, 1))
    workspace.resize_(2 * len(workspace))
    stand.graphs.run(decode(1, 2))
    stand.graphs.run(decode(1, 3))
    assert stand.attention.sizes == [1, 2, 1]
    record, growing = stand.record, [True]

    def record_and_grow(launch: Callable[[], torch.Tensor]) -> CapturedStep:
        if growing:
            growing.clear()
            workspace.resize_(2 * len(workspace))
        return record(launch)

    stand.graphs._capture = record_and_grow
    captured = stand.graphs.run(decode(2, 4)).clone()
    stand.graphs.run(decode(1, 5))
    assert stand.attention.sizes == [1, 2, 1, 2, 2, 1]
    # torch's pool of memory for graphs ends with the last of them.
    assert stand.num_new_captures == 3
    eager = stand.runner.run(decode(2, 4))
    torch.testing.assert_close(captured, eager, rtol=1e-4, atol=1e-3)


@torch.inference_mode()
def test_padding_touches_no_block_but_the_null_block(
    make: Callable[[type[Any]], Stand],
) -> None:
    """What others have in their blocks stays as it was."""
    stand = make(Thop)
    before = stand.pool.by_block.clone()
    stand.graphs.run(decode(3, 0))
    changed = stand.pool.by_block != before
    blocks = changed.flatten(1).any(1).nonzero().flatten().tolist()
    assert blocks == [0, 1, 2, 3]


def test_steps_that_are_not_one_row_a_sequence_are_left_to_eager_runs(
    make: Callable[[type[Any]], Stand],
) -> None:
    """Prompts, rows that nobody wants, nothing at all, too many."""
    token = entry(0, (5,), 3)
    plans = {
        "decode": StepPlan(0, (token,) * MAX_NUM_SEQS, 0, (), (), ()),
        "prompt": StepPlan(0, (token,), 1, (), (), ()),
        "no row": StepPlan(0, (entry(0, (5,), 3, 0),), 0, (), (), ()),
        "nothing": StepPlan(0, (), 0, (), (), ()),
        "too many": StepPlan(0, (token,) * (MAX_NUM_SEQS + 1), 0, (), (), ()),
    }
    graphs = make(Thop).graphs
    taken = [name for name, plan in plans.items() if graphs.takes(plan)]
    assert taken == ["decode"]


@pytest.mark.parametrize(
    ("max_num_seqs", "num_rows"), [(1, 1), (2, 3), (5, 12), (8, 15), (256, 511)]
)
def test_graphs_keep_the_logits_of_every_size(max_num_seqs: int, num_rows: int) -> None:
    """1 + 2 + 4 + ... rows, and those of the largest."""
    kept = graph_memory_bytes(max_num_seqs, 100, torch.bfloat16)
    assert kept == num_rows * 100 * 2
