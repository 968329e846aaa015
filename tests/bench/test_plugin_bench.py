"""What plugins cost a step; run with ``--benchmark-enable``.

Measured: one event told to no plugin and up to ten; an engine's decode step over the
null executor, watched by nobody and by one plugin.
"""

from typing import Final

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hybrid import SamplingParams
from hybrid.api import API_VERSION, StepFinished, StepPlan, hookimpl
from hybrid.plugins.lifecycle import LifecycleHooks
from hybrid.plugins.manager import PluginManager
from hybrid.plugins.plugin_record import PluginSource
from tests.hybrid.null_stand import make_engine

NUM_REQUESTS: Final = 8
ROUNDS: Final = 200
STEP: Final = StepFinished(plan=StepPlan(0, (), 0, (), (), ()), total_s=0.0)


class Watcher:
    """Keeps the last step that it is told of."""

    hybrid_api_version = API_VERSION
    step: StepFinished | None = None

    @hookimpl
    def hybrid_step_finished(self, step: StepFinished) -> None:
        """See ``HookSpecs``."""
        self.step = step


def hooks_of(num_plugins: int) -> tuple[LifecycleHooks, list[Watcher]]:
    """The hooks of an engine that so many plugins watch, and these."""
    manager = PluginManager()
    watchers = [Watcher() for _ in range(num_plugins)]
    for index, watcher in enumerate(watchers):
        manager.add(watcher, PluginSource(f"watcher-{index}", "bench", "1.0"))
    return manager.lifecycle_hooks(), watchers


@pytest.mark.parametrize("num_plugins", [0, 1, 2, 10])
def test_hook_call(benchmark: BenchmarkFixture, num_plugins: int) -> None:
    """One event told to every plugin, as a step does: asked for first, then called."""
    hooks, watchers = hooks_of(num_plugins)

    def tell() -> None:
        if hooks.step_finished:
            hooks.step_finished(STEP)

    benchmark(tell)
    assert all(watcher.step is not None for watcher in watchers)


@pytest.mark.parametrize("num_plugins", [0, 1])
def test_watched_step(benchmark: BenchmarkFixture, num_plugins: int) -> None:
    """A decode step of a few requests; the null executor leaves little but the loop."""
    hooks, watchers = hooks_of(num_plugins)
    engine = make_engine(
        block_size=16, num_blocks=512, hooks=hooks, max_num_batched_tokens=4096
    )
    endless = SamplingParams(temperature=0, ignore_eos=True, stop_token_ids=())

    def setup() -> None:
        if not engine.has_unfinished_requests():
            for index in range(NUM_REQUESTS):
                engine.add_request(str(index), [index + 1] * 8, endless, stream=False)
            engine.step()

    benchmark.pedantic(engine.step, setup=setup, rounds=ROUNDS, warmup_rounds=5)
    assert all(watcher.step is not None for watcher in watchers)
