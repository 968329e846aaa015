"""Requests that are aborted, executors that are closed, models that are nonsense."""

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import Executor, ProgressCallback
from hybrid.engine import HybridEngine
from hybrid.outputs import RequestOutput
from hybrid.scheduler import FinishReason, HybridError, StepPlan

from .bench import Bench
from .engine_run import finish, fresh_ids
from .executor_case import ExecutorCase, FindSource
from .workload import GREEDY, TokenIds

ENDING_S: Final = 30.0
"""How long a thread that was told to end may take; most are gone at once."""


class LifecycleTests(ExecutorCase):
    """Ends of all kinds leave the others, and the pool, as they should be."""

    def test_an_aborted_waiting_request_leaves_no_trace(self, bench: Bench) -> None:
        """It never ran; the one before it is answered."""
        engine = bench.engine(max_num_seqs=1)
        _check_abort(bench, engine, 1, lambda plan: bool(plan.scheduled))

    def test_an_aborted_prompt_leaves_no_trace(self, bench: Bench) -> None:
        """It ends between two chunks of its prompt."""
        bench.require("chunked_prefill")
        engine = bench.engine(max_prefill_chunk_tokens=3)

        def has_block(plan: StepPlan) -> bool:
            """Whether a block of it is computed, and it is not through."""
            victim = plan.scheduled[1]
            end = victim.num_computed_tokens + len(victim.token_ids)
            return end >= bench.loaded.block_size and victim.num_samples == 0

        prompts = bench.workload.prompts[-3:]
        _check_abort(bench, engine, 1, has_block, prompts=prompts)

    def test_an_aborted_answer_leaves_no_trace(self, bench: Bench) -> None:
        """It ends while it decodes beside another."""
        engine = bench.engine()
        _check_abort(bench, engine, 0, lambda plan: plan.step == 3)

    def test_an_aborted_preempted_request_leaves_no_trace(self, bench: Bench) -> None:
        """Its blocks were taken, and it never comes back for them."""
        engine = bench.engine(num_blocks=bench.workload.tight_num_blocks)
        _check_abort(bench, engine, None, lambda plan: bool(plan.preempted))

    def test_aborting_what_has_ended_changes_nothing(self, bench: Bench) -> None:
        """Finished, aborted twice, never known: no error, and no harm."""
        prompts = bench.workload.growing[:2]
        ids, engine = fresh_ids(2), bench.engine()
        _add(engine, ids, prompts)
        assert engine.abort("nobody") is None
        engine.step()
        assert engine.abort(ids[1]) is not None
        assert engine.abort(ids[1]) is None
        done = finish(engine)
        assert engine.abort(ids[0]) is None
        bench.check(prompts[:1], [done[ids[0]]], "beside an abort")

    def test_loading_reports_no_nonsense(self, find_source: FindSource) -> None:
        """Whatever it counts goes up, stage by stage, and not beyond its total."""
        reports: list[tuple[str, int, int]] = []
        executor = self._loaded(find_source, lambda *report: reports.append(report))
        executor.close()
        before = ("", 0, 0)
        for stage, done, total in reports:
            assert stage, f"a stage without a name: {reports}"
            assert 0 <= done <= total, f"{stage}: {done} of {total}"
            assert stage != before[0] or done >= before[1], f"{stage}: back to {done}"
            before = (stage, done, total)

    def test_closing_twice_is_no_error(self, find_source: FindSource) -> None:
        """Loaded or not, an executor may be closed again."""
        unloaded = self.make_executor()
        for executor in (unloaded, self._loaded(find_source)):
            executor.close()
            executor.close()

    def test_a_closed_executor_leaves_nothing(self, find_source: FindSource) -> None:
        """No thread goes on, and nothing holds what was loaded."""
        # The first may start what its libraries keep for the whole process.
        self._loaded(find_source).close()
        before = set(threading.enumerate())
        executor = self._loaded(find_source)
        executor.close()
        more = [t for t in threading.enumerate() if t not in before]
        for thread in more:
            thread.join(ENDING_S)  # one that was told to end may be about to
        left = [thread.name for thread in more if thread.is_alive()]
        assert not left, f"threads that close() left: {left}"
        alive = weakref.ref(executor)
        del executor
        gc.collect()
        holders = [] if alive() is None else gc.get_referrers(alive())
        kinds = sorted({type(holder).__name__ for holder in holders})
        assert alive() is None, f"a closed executor is still held, by {kinds}"

    @pytest.mark.parametrize("nonsense", ["missing", "empty", "garbled"])
    def test_a_model_that_is_none_is_refused(
        self, tmp_path: Path, nonsense: str
    ) -> None:
        """Files that are no model end in an error of ours, with its cause."""
        self._skip_without_model()
        folder = tmp_path / nonsense
        if nonsense != "missing":
            folder.mkdir()
        if nonsense == "garbled":
            (folder / "config.json").write_text("no JSON")
        source = ModelSource(nonsense, folder, CheckpointFormat.HF_DIRECTORY)
        self._check_refused(source)

    def test_no_model_is_refused(self) -> None:
        """An executor that needs a model says so where there is none."""
        self._skip_without_model()
        self._check_refused(None)

    def _check_refused(self, source: ModelSource | None) -> None:
        config = self.executor_config(self.first_load())
        with closing(self.make_executor()) as executor, pytest.raises(HybridError):
            executor.load(source, config)

    def _skip_without_model(self) -> None:
        if self.first_load().architecture is None:
            pytest.skip("this executor needs no model")

    def _loaded(
        self, find_source: FindSource, progress: ProgressCallback | None = None
    ) -> Executor:
        load, executor = self.first_load(), self.make_executor()
        source = find_source(load.architecture)
        executor.load(source, self.executor_config(load), progress)
        executor.allocate_kv(8)
        return executor


def _add(engine: HybridEngine, ids: list[str], prompts: Sequence[TokenIds]) -> None:
    for request_id, prompt in zip(ids, prompts, strict=True):
        engine.add_request(request_id, prompt, GREEDY, stream=False)


def _check_abort(
    bench: Bench,
    engine: HybridEngine,
    victim: int | None,
    is_time: Callable[[StepPlan], bool],
    *,
    prompts: Sequence[TokenIds] = (),
) -> None:
    """Abort one of several requests once a plan is so; the others are answered.

    Afterwards the same prompt is answered by the same engine: its blocks are clean.
    ``victim`` is an index; ``None``: whom that plan preempted. ``prompts``: the growing
    ones unless others are given.
    """
    prompts = prompts or bench.workload.growing
    ids = fresh_ids(len(prompts))
    _add(engine, ids, prompts)
    done: dict[str, RequestOutput] = {}
    while not (bench.recorder.plans and is_time(bench.recorder.plans[-1])):
        done |= {output.request_id: output for output in engine.step()}
    if victim is None:
        victim = ids.index(bench.recorder.plans[-1].preempted[0].request_id)
    aborted = engine.abort(ids[victim])
    assert aborted is not None
    assert aborted.outputs[0].finish_reason is FinishReason.ABORT
    again = fresh_ids(1)[0]
    engine.add_request(again, prompts[victim], GREEDY, stream=False)
    done |= finish(engine)
    ids[victim] = again
    bench.check(prompts, [done[request_id] for request_id in ids], "after an abort")
