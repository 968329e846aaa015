"""Captured decode steps: static inputs, padded sizes, the eager answer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from hybrid.backends.pytorch.kv_pool import KVPool
from hybrid.backends.trtllm.attention import AttentionNeeds
from hybrid.backends.trtllm.decode_graphs import CapturedStep, DecodeGraphs
from hybrid.backends.trtllm.executor import TrtllmExecutor
from hybrid.backends.trtllm.model_runner import ModelRunner
from hybrid.backends.trtllm.torch_attention import TorchAttention
from hybrid.scheduler import (
    GenerateRequest,
    SamplingParams,
    ScheduledRequest,
    StepPlan,
)
from hybrid.testing import write_tiny_model
from tests.backends.trtllm_stand import load_trtllm

MAX_NUM_SEQS = 5
CPU = torch.device("cpu")


class Capturable(TorchAttention):
    """Says that it may be captured; notes when."""

    def __init__(self, needs: AttentionNeeds, pool: KVPool) -> None:
        super().__init__(needs, pool)
        self.sizes: list[int] = []

    @contextmanager
    def captured(self, num_seqs: int) -> Iterator[None]:
        """Note the size."""
        self.sizes.append(num_seqs)
        yield


def record(launch: Callable[[], torch.Tensor]) -> CapturedStep:
    """Stand in for a graph: a replay launches again, into the same output.

    As of a graph, nothing that is computed while it is recorded counts.
    """
    output = torch.full_like(launch(), float("nan"))

    def replay() -> None:
        output.copy_(launch())

    return CapturedStep(replay, output)


class Stand:
    """A tiny model after five prompts, eager and captured."""

    def __init__(self, folder: Path) -> None:
        executor = load_trtllm(folder, attention="torch").executor
        assert isinstance(executor, TrtllmExecutor)
        runner = executor._runner
        assert isinstance(runner, ModelRunner)
        assert executor._pool is not None
        self.runner = runner
        self.attention = Capturable(runner._needs, executor._pool)
        runner._attention = self.attention
        self.graphs = DecodeGraphs(
            runner._forward, self.attention, MAX_NUM_SEQS, CPU, capture=record
        )
        prompts = [entry(index, (3, 4 + index, 5), 0) for index in range(5)]
        runner.run(StepPlan(0, tuple(prompts), 5, (), (), ()))


def entry(
    index: int, token_ids: tuple[int, ...], num_computed: int, num_rows: int = 1
) -> ScheduledRequest:
    """A sequence on a block of its own."""
    request = GenerateRequest(str(index), token_ids, SamplingParams())
    return ScheduledRequest(
        request, 0, token_ids, num_computed, (index + 1,), num_rows, 1
    )


def decode(num_seqs: int, step: int) -> StepPlan:
    """One token of each of the first sequences."""
    entries = [entry(index, (7 + index + step,), 3 + step) for index in range(num_seqs)]
    return StepPlan(step, tuple(entries), 0, (), (), ())


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    """Fresh, after its prompts."""
    return Stand(write_tiny_model(tmp_path, "llama"))


@torch.inference_mode()
def test_a_replayed_step_gives_the_eager_answer(stand: Stand) -> None:
    """At sizes that are captured as they are, and at those that are padded."""
    for step, num_seqs in enumerate((1, 2, 3, 4, 5, 3, 1)):
        plan = decode(num_seqs, step)
        captured = stand.graphs.run(plan).clone()
        eager = stand.runner.run(plan)
        torch.testing.assert_close(captured, eager, rtol=1e-4, atol=1e-3)
    # Powers of two, and what the engine allows at most; each recorded once.
    assert stand.attention.sizes == [1, 2, 4, 5]


@torch.inference_mode()
def test_padding_touches_no_block_but_the_null_block(stand: Stand) -> None:
    """What others have in their blocks stays as it was."""
    pool = stand.attention._pool
    before = pool.by_block.clone()
    stand.graphs.run(decode(3, 0))
    changed = (pool.by_block != before).flatten(1).any(1).nonzero().flatten().tolist()
    assert changed == [0, 1, 2, 3]


def test_steps_that_are_not_one_row_a_sequence_are_left_to_eager_runs(
    stand: Stand,
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
    taken = [name for name, plan in plans.items() if stand.graphs.takes(plan)]
    assert taken == ["decode"]
