"""The metrics page says what requests did; read by Prometheus' own parser."""

import asyncio
from itertools import pairwise

import pytest
from prometheus_client.exposition import generate_latest

from hybrid import FinishReason, InvalidRequest, SamplingParams
from hybrid.scheduler import Overloaded
from hybrid.serving.admission import AdmissionLimits
from hybrid.serving.engine_host import EngineHost
from hybrid.serving.serving_metrics import ServingMetrics
from tests.hybrid.null_stand import HeldExecutor, make_engine
from tests.serving.host_stand import ask, with_host
from tests.serving.metrics_page import Page

SHORT = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)


def test_a_page_adds_up_what_requests_did() -> None:
    """Requests, tokens, hits and histograms agree with the outputs themselves."""
    engine = make_engine(num_blocks=64)
    prompts = [range(1, 10), range(1, 10), range(30, 35)]

    async def body(host: EngineHost) -> None:
        metrics = ServingMetrics(host)
        lasts = [
            (await ask(host, f"r{i}", prompt, SHORT))[-1]
            for i, prompt in enumerate(prompts)
        ]
        page = Page.of(metrics)
        assert page.values(
            [
                "vllm:prompt_tokens_total",
                "vllm:generation_tokens_total",
                "vllm:prefix_cache_queries_total",
                "vllm:prefix_cache_hits_total",
                "vllm:num_preemptions_total",
                "hybrid:requests_total",
                "vllm:time_to_first_token_seconds_count",
                "vllm:inter_token_latency_seconds_count",
                "vllm:e2e_request_latency_seconds_count",
                "vllm:request_queue_time_seconds_count",
                "vllm:request_prefill_time_seconds_count",
                "vllm:request_decode_time_seconds_count",
                "vllm:request_prompt_tokens_sum",
                "vllm:request_generation_tokens_sum",
                "vllm:num_requests_running",
                "vllm:num_requests_waiting",
                "vllm:kv_cache_usage_perc",
                "hybrid:num_requests_in_server",
            ]
        ) == {
            "vllm:prompt_tokens_total": 23,
            "vllm:generation_tokens_total": 15,
            "vllm:prefix_cache_queries_total": 23,
            "vllm:prefix_cache_hits_total": 8,
            "vllm:num_preemptions_total": 0,
            "hybrid:requests_total": 3,
            "vllm:time_to_first_token_seconds_count": 3,
            "vllm:inter_token_latency_seconds_count": 12,
            "vllm:e2e_request_latency_seconds_count": 3,
            "vllm:request_queue_time_seconds_count": 3,
            "vllm:request_prefill_time_seconds_count": 3,
            "vllm:request_decode_time_seconds_count": 3,
            "vllm:request_prompt_tokens_sum": 23,
            "vllm:request_generation_tokens_sum": 15,
            "vllm:num_requests_running": 0,
            "vllm:num_requests_waiting": 0,
            "vllm:kv_cache_usage_perc": 0,
            "hybrid:num_requests_in_server": 0,
        }
        total_s = sum(last.metrics.total_s for last in lasts)
        first_s = sum(last.metrics.ttft_s for last in lasts)
        for name, expected in {
            "vllm:e2e_request_latency_seconds_sum": total_s,
            "vllm:time_to_first_token_seconds_sum": first_s,
            "vllm:inter_token_latency_seconds_sum": total_s - first_s,
            "vllm:request_decode_time_seconds_sum": total_s - first_s,
        }.items():
            assert page.value(name) == pytest.approx(expected)

    with_host(engine, body)


def test_every_sample_says_which_model_and_executor() -> None:
    """Several servers of one Prometheus can be told apart."""

    async def body(host: EngineHost) -> None:
        page = Page.of(ServingMetrics(host))
        assert page.samples
        for sample in page.samples:
            assert sample.labels["model_name"] == "tiny"
            assert sample.labels["executor"] == "null"
        config = {"block_size": "4", "num_gpu_blocks": "32"}
        assert page.value("vllm:cache_config_info", **config) == 1

    with_host(make_engine(), body)


def test_gauges_follow_what_runs_and_waits() -> None:
    """Blocks in use as a share of all; sequences that have no place yet."""
    executor = HeldExecutor()
    engine = make_engine(num_blocks=64, executor=executor, max_num_seqs=1)

    async def body(host: EngineHost) -> None:
        metrics = ServingMetrics(host)
        running = host.generate(range(1, 9), LONG, request_id="a", num_prompt_tokens=8)
        await anext(running)
        page = Page.of(metrics)
        assert page.value("vllm:num_requests_running") == 1
        share = page.value("vllm:kv_cache_usage_perc")
        assert share == pytest.approx(page.value("hybrid:kv_allocated_slots") / 256)
        assert page.value("hybrid:num_tokens_in_server") == 108
        waiting = asyncio.create_task(ask(host, "b", [1, 2], SHORT))
        executor.let_go()
        [output async for output in running]
        await waiting

    with_host(engine, body)


def test_a_cancelled_request_is_counted_once_and_counters_never_fall() -> None:
    """By reason: aborted, left, complete; a refused one is none of them."""
    executor = HeldExecutor(num_free_steps=2)
    engine = make_engine(num_blocks=64, executor=executor)

    async def body(host: EngineHost) -> None:
        metrics = ServingMetrics(host)
        pages = [Page.of(metrics)]
        left = host.generate([1, 2, 3], LONG, request_id="left", num_prompt_tokens=3)
        await anext(left)
        pages.append(Page.of(metrics))
        await left.aclose()
        pages.append(Page.of(metrics))
        aborted = asyncio.create_task(ask(host, "aborted", [4, 5], LONG))
        await asyncio.sleep(0)
        host.abort("aborted")
        executor.let_go()
        await aborted
        with pytest.raises(InvalidRequest):
            await ask(host, "bad", [1] * 500, SHORT)
        await ask(host, "whole", [6], SHORT)
        pages.append(Page.of(metrics))
        counts = {
            reason.value: pages[-1].value(
                "vllm:request_success_total", finished_reason=reason.value
            )
            for reason in FinishReason
        }
        assert counts == {"abort": 2, "length": 1, "stop": 0, "error": 0}
        assert pages[-1].value("hybrid:num_requests_in_server") == 0
        histories = [page.counters() for page in pages]
        for before, after in pairwise(histories):
            assert before.keys() == after.keys()
            assert all(before[key] <= after[key] for key in before)

    with_host(engine, body)


def test_samples_of_one_request_are_counted_each() -> None:
    """Steps are timed once for every token that they gave."""
    params = SamplingParams(n=3, seed=1, max_tokens=5, ignore_eos=True)

    async def body(host: EngineHost) -> None:
        metrics = ServingMetrics(host)
        (*_, last) = await ask(host, "r", range(1, 10), params)
        page = Page.of(metrics)
        assert page.value("vllm:generation_tokens_total") == 15
        assert page.value("vllm:inter_token_latency_seconds_count") == 12
        assert page.value("vllm:request_generation_tokens_count") == 3
        assert page.value("vllm:prompt_tokens_total") == 9
        decode_s = last.metrics.total_s - last.metrics.ttft_s
        seen_s = page.value("vllm:inter_token_latency_seconds_sum")
        assert seen_s == pytest.approx(3 * decode_s)

    with_host(make_engine(num_blocks=64), body)


def test_who_reads_slowly_is_no_slow_engine() -> None:
    """Tokens folded into one output are as many as those that were streamed."""

    async def body(host: EngineHost) -> None:
        metrics = ServingMetrics(host)
        outputs = host.generate([1, 2], SHORT, request_id="r", num_prompt_tokens=2)
        read = [await anext(outputs)]
        await ask(host, "other", [3], LONG)
        read += [output async for output in outputs]
        assert len(read) <= 2
        page = Page.of(metrics)
        assert page.value("vllm:inter_token_latency_seconds_count") == 4 + 99
        assert page.value("vllm:time_to_first_token_seconds_count") == 2

    with_host(make_engine(num_blocks=64), body)


def test_a_request_that_was_not_let_in_leaves_no_trace() -> None:
    """A watcher sees only requests that begin."""
    limits = AdmissionLimits(max_requests=1)
    engine = make_engine(num_blocks=64)

    async def body(host: EngineHost) -> None:
        metrics = ServingMetrics(host)
        outputs = host.generate([1, 2], LONG, request_id="r", num_prompt_tokens=2)
        await anext(outputs)
        with pytest.raises(Overloaded):
            await ask(host, "more", [3], SHORT)
        await outputs.aclose()
        assert not metrics._requests._progress
        assert Page.of(metrics).value("hybrid:requests_total") == 1

    with_host(engine, body, limits)


def test_recomputation_is_no_hit_and_no_new_prompt() -> None:
    """Prompts that share nothing, on a pool that makes them give way to each other."""
    engine = make_engine(num_blocks=12, max_num_seqs=4)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)

    async def body(host: EngineHost) -> None:
        metrics = ServingMetrics(host)
        prompts = [range(20 * i, 20 * i + 6) for i in range(4)]
        await asyncio.gather(*(ask(host, str(p), p, params) for p in prompts))
        page = Page.of(metrics)
        assert page.value("vllm:num_preemptions_total") > 0
        assert page.value("vllm:prefix_cache_hits_total") == 0
        assert page.value("vllm:prefix_cache_queries_total") == 24
        assert page.value("vllm:prompt_tokens_total") == 24
        assert page.value("vllm:generation_tokens_total") == 80
        assert page.value("hybrid:scheduled_tokens_total") > 24 + 80

    with_host(engine, body)


def test_two_servers_of_one_process_share_nothing() -> None:
    """Each has its own registry, and the library's global one stays as it was."""
    from prometheus_client import REGISTRY  # noqa: PLC0415 - only to see it untouched

    async def body(host: EngineHost) -> None:
        first, second = ServingMetrics(host), ServingMetrics(host)
        assert Page.of(first).families.keys() == Page.of(second).families.keys()
        assert b"vllm:" not in generate_latest(REGISTRY)

    with_host(make_engine(), body)
