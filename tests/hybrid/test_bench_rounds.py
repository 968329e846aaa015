"""Rounds: what is asked of an engine, what is counted, and what that comes to."""

import gc

import numpy as np
import pytest

from hybrid.backends.interface import ForwardResult
from hybrid.backends.null.executor import NullExecutor
from hybrid.bench import EngineChoice, Measurement, Workload
from hybrid.bench.process_memory import peak_rss_bytes, reset_peak_rss
from hybrid.bench.round_run import run_round
from hybrid.scheduler import ConfigError, SamplingFailed, StepPlan
from tests.hybrid.bench_stand import make_run
from tests.hybrid.null_stand import VOCAB_SIZE, make_engine


class _NanExecutor(NullExecutor):
    """Its logits are not numbers."""

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Run the plan and lose the result."""
        logits = np.from_dlpack(super().execute(plan).logits)  # type: ignore[arg-type]
        return ForwardResult(logits=np.full_like(logits, np.nan))


def test_prompts_are_new_in_each_round_and_the_same_for_all() -> None:
    """A seed gives one set of prompts, another seed another; sizes are as asked for."""
    workload = Workload(3, 7, 5)
    first = workload.prompts(50, seed=1)
    assert first == workload.prompts(50, seed=1)
    assert first != workload.prompts(50, seed=2)
    assert [len(prompt) for prompt in first] == [7, 7, 7]
    assert all(0 <= token_id < 50 for prompt in first for token_id in prompt)


def test_a_workload_knows_its_blocks() -> None:
    """Each request fills whole blocks: 3 of 12 tokens are 9 blocks of 4 or 6 of 8."""
    assert Workload(3, 7, 5).num_kv_blocks(4) == 9
    assert Workload(3, 7, 5).num_kv_blocks(8) == 6


@pytest.mark.parametrize("limits", [{}, {"max_num_batched_tokens": 8}])
def test_a_round_counts_every_token(limits: dict[str, int]) -> None:
    """One first token a request and a gap before each other one, however it is run."""
    engine = make_engine(enable_prefix_caching=False, **limits)
    workload = Workload(3, 7, 5)
    run = run_round(engine, workload, vocab_size=VOCAB_SIZE, seed=0)
    stats = engine.stats()
    assert stats.generation_tokens_total == 15
    assert stats.prompt_tokens_total == 21
    assert len(run.ttft_s) == 3
    assert len(run.gaps_s) == 12
    assert 3 <= run.num_prefill_tokens <= 15
    assert max(run.ttft_s) == run.prefill_s <= run.total_s
    assert sum(run.gaps_s) + sum(run.ttft_s) <= 3 * run.total_s * 1.000001


def test_an_answer_of_one_token_has_no_decoding() -> None:
    """Where nothing is decoded there is no rate, and no latency between tokens."""
    engine = make_engine(enable_prefix_caching=False)
    run = run_round(engine, Workload(2, 5, 1), vocab_size=VOCAB_SIZE, seed=0)
    assert run.decode_tokens_per_s is None
    measured = Measurement.of("null", [run], kv_bytes=1)
    assert measured.decode_tokens_per_s is None
    assert measured.inter_token_s is None


def test_a_failed_request_fails_the_round() -> None:
    """A request that ended in an error is no fast request."""
    engine = make_engine(executor=_NanExecutor())
    with pytest.raises(SamplingFailed):
        run_round(engine, Workload(2, 5, 3), vocab_size=VOCAB_SIZE, seed=0)


def test_rates_are_tokens_by_their_own_time() -> None:
    """Two requests of 100 and 50 tokens: 1 s of prefill, 4 s in all."""
    run = make_run(Workload(2, 100, 50), total_s=4.0, prefill_s=1.0)
    assert run.total_tokens_per_s == 25.0
    assert run.prefill_tokens_per_s == 200.0
    assert run.decode_tokens_per_s == pytest.approx(98 / 3)


def test_rounds_are_summed_up_by_medians_and_percentiles() -> None:
    """The slowest round moves a range, not the median; latencies are pooled."""
    workload = Workload(1, 10, 3)
    runs = [
        make_run(workload, total_s=1.0, gaps_s=(0.0, 1.0), peak_rss_bytes=5),
        make_run(workload, total_s=3.0, gaps_s=(2.0, 3.0), peak_rss_bytes=9),
        make_run(workload, total_s=30.0, gaps_s=(4.0, 10.0), peak_rss_bytes=7),
    ]
    measured = Measurement.of("e", runs, kv_bytes=64)
    total = measured.total_tokens_per_s
    assert (total.median, total.min, total.max) == (1.0, 0.1, 3.0)
    assert measured.inter_token_s is not None
    assert measured.inter_token_s.p50 == 2.5
    assert measured.inter_token_s.p90 == 7.0
    assert measured.inter_token_s.p99 == pytest.approx(9.7)
    assert measured.peak_rss_bytes == 9
    assert measured.num_rounds == 3


def test_the_memory_of_the_past_is_forgotten() -> None:
    """A peak covers what came after its reset alone."""
    size = 128 << 20
    reset_peak_rss()
    before = peak_rss_bytes()
    block = np.ones(size, np.uint8)
    peak = peak_rss_bytes()
    assert peak - before > size // 2
    del block
    gc.collect()
    reset_peak_rss()
    assert peak_rss_bytes() < peak - size // 2


def test_a_choice_is_a_name_and_options() -> None:
    """Values are JSON where they can be; the label is how it was asked for."""
    choice = EngineChoice.parse("cpu:quantization=int4,threads=2")
    assert choice.executor == "cpu"
    assert choice.options == {"quantization": "int4", "threads": 2}
    assert choice.label == "cpu:quantization=int4,threads=2"
    assert EngineChoice.parse("torch") == EngineChoice("torch", {})


@pytest.mark.parametrize("text", ["", ":a=1", "cpu:", "cpu:a", "cpu:=1", "cpu:a=1,a=2"])
def test_a_malformed_choice_is_refused(text: str) -> None:
    """The message shows it."""
    with pytest.raises(ConfigError, match="executor is"):
        EngineChoice.parse(text)
