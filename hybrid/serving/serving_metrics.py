"""What a server tells Prometheus: an engine's snapshot and its requests' histograms.

Names are vLLM's (0.32, ``vllm/v1/metrics/loggers.py``) where the meaning is the same,
else they begin with ``hybrid:``. Counters never fall.
"""

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hybrid.metrics import EngineSnapshot
from hybrid.scheduler import FinishReason

from .engine_host import EngineHost
from .histogram import Histogram
from .request_histograms import RequestHistograms

LABELS: Final = ("model_name", "executor")


class ServingMetrics(Collector):
    """Collects when it is asked to; no state of its own but the histograms."""

    def __init__(self, host: EngineHost) -> None:
        """Watch a host's requests from now on."""
        self._host: Final = host
        self._labels: Final = (host.model.name, host.model.executor)
        self._requests: Final = RequestHistograms(host.model.max_model_len)
        host.watchers.append(self._requests)
        self.registry: Final = CollectorRegistry()
        """Holds this collector alone: nothing is shared within the process."""
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Everything as of the engine's last step; called in any thread."""
        snapshot = self._host.stats()
        yield self._cache_config()
        yield self._finished(snapshot)
        for name, text, value in (*_gauges(snapshot), *self._own_gauges()):
            gauge = GaugeMetricFamily(name, text, labels=LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        for name, text, count in (*_counters(snapshot), self._prompt_tokens()):
            counter = CounterMetricFamily(name, text, labels=LABELS)
            counter.add_metric(self._labels, count)
            yield counter
        for name, text, histogram in _histograms(self._requests):
            family = HistogramMetricFamily(name, text, labels=LABELS)
            family.add_metric(self._labels, histogram.cumulative(), histogram.sum)
            yield family

    def _cache_config(self) -> Metric:
        model = self._host.model
        info = GaugeMetricFamily(
            "vllm:cache_config_info",
            "The KV pool; always 1.",
            labels=(*LABELS, "block_size", "num_gpu_blocks"),
        )
        values = (*self._labels, str(model.block_size), str(model.num_blocks))
        info.add_metric(values, 1)
        return info

    def _finished(self, snapshot: EngineSnapshot) -> Metric:
        """Say 0 of every reason that did not occur: a rate needs a first value."""
        finished = CounterMetricFamily(
            "vllm:request_success",
            "Requests that have ended, by finish reason.",
            labels=(*LABELS, "finished_reason"),
        )
        for reason in FinishReason:
            count = snapshot.requests_finished_total.get(reason.value, 0)
            finished.add_metric((*self._labels, reason.value), count)
        return finished

    def _own_gauges(self) -> Iterator[tuple[str, str, float]]:
        admission = self._host.admission
        yield (
            "hybrid:num_requests_in_server",
            "Requests that were let in and have not ended.",
            admission.num_requests,
        )
        yield (
            "hybrid:num_tokens_in_server",
            "Tokens of their prompts, and of the answers that they ask for.",
            admission.num_tokens,
        )

    def _prompt_tokens(self) -> tuple[str, str, float]:
        return (
            "vllm:prompt_tokens",
            "Prompt tokens of the requests that got a token, cached ones included.",
            self._requests.num_prompt_tokens,
        )


def _gauges(snapshot: EngineSnapshot) -> Iterator[tuple[str, str, float]]:
    num_blocks = snapshot.kv_total_blocks
    yield (
        "vllm:num_requests_running",
        "Sequences that own blocks.",
        snapshot.num_requests_running,
    )
    yield (
        "vllm:num_requests_waiting",
        "Sequences that wait for blocks, budget or a place.",
        snapshot.num_requests_waiting,
    )
    yield (
        "vllm:kv_cache_usage_perc",
        "Share of the KV blocks that sequences own, 0 to 1.",
        1 - snapshot.kv_free_blocks / num_blocks,
    )
    yield "hybrid:kv_total_blocks", "KV blocks there are.", num_blocks
    yield (
        "hybrid:kv_cached_idle_blocks",
        "KV blocks that nobody owns and that can still be found.",
        snapshot.kv_cached_idle_blocks,
    )
    yield (
        "hybrid:kv_allocated_slots",
        "Token slots in owned KV blocks.",
        snapshot.kv_allocated_slots,
    )
    yield "hybrid:kv_used_slots", "Slots that hold a token.", snapshot.kv_used_slots


def _counters(snapshot: EngineSnapshot) -> Iterator[tuple[str, str, float]]:
    yield (
        "vllm:generation_tokens",
        "Tokens drawn, over all requests.",
        snapshot.generation_tokens_total,
    )
    yield (
        "vllm:prefix_cache_queries",
        "Prompt tokens that were looked up in the prefix cache.",
        snapshot.prefix_cache_queries_total,
    )
    yield (
        "vllm:prefix_cache_hits",
        "Prompt tokens that were found there.",
        snapshot.prefix_cache_hits_total,
    )
    yield (
        "vllm:num_preemptions",
        "Sequences that gave their blocks to others for a while.",
        snapshot.preemptions_total,
    )
    yield "hybrid:requests", "Requests that were queued.", snapshot.requests_total
    yield "hybrid:steps", "Steps of the engine.", snapshot.steps_total
    yield (
        "hybrid:scheduled_tokens",
        "Tokens that were computed, recomputed ones included.",
        snapshot.scheduled_tokens_total,
    )


def _histograms(
    requests: RequestHistograms,
) -> Iterator[tuple[str, str, Histogram]]:
    """Seconds, then tokens."""
    for name, text, histogram in (
        ("time_to_first_token", "Arrival to the first token.", requests.first_token_s),
        ("inter_token_latency", "A token to the next.", requests.inter_token_s),
        ("e2e_request_latency", "Arrival to the end.", requests.total_s),
        ("request_queue_time", "Arrival to the first step.", requests.queue_s),
        ("request_prefill_time", "First step to first token.", requests.prefill_s),
        ("request_decode_time", "First token to the end.", requests.decode_s),
    ):
        yield f"vllm:{name}_seconds", text, histogram
    yield (
        "vllm:request_prompt_tokens",
        "Prompt tokens of a request.",
        requests.prompt_tokens,
    )
    yield (
        "vllm:request_generation_tokens",
        "Tokens of an answer, each sample by itself.",
        requests.generation_tokens,
    )
