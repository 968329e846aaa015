"""Where spans go, and that nothing is there when they go nowhere."""

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import (
    trace_service_pb2,
    trace_service_pb2_grpc,
)
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hybrid import SamplingParams
from hybrid.scheduler import ConfigError
from hybrid.serving.engine_host import EngineHost
from hybrid.serving.trace_switch import start_tracing
from hybrid.serving.tracing import Tracing
from tests.hybrid.null_stand import make_engine
from tests.serving.host_stand import ask, with_host

SHORT = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def test_the_environment_names_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OpenTelemetry's own variables win over our defaults."""
    exporter = InMemorySpanExporter()
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    monkeypatch.delenv("OTEL_RESOURCE_ATTRIBUTES", raising=False)
    ours = Tracing(SimpleSpanProcessor(exporter))
    assert ours._provider.resource.attributes["service.name"] == "hybrid"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "front-7")
    theirs = Tracing(SimpleSpanProcessor(exporter))
    assert theirs._provider.resource.attributes["service.name"] == "front-7"
    for tracing in (ours, theirs):
        asyncio.run(tracing.close())


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans as OpenTelemetry's own collector does."""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    def Export(self, request: Any, _: object) -> Any:  # noqa: N802 - the protocol's
        """Keep the spans."""
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return trace_service_pb2.ExportTraceServiceResponse()


def test_a_collector_gets_the_spans_by_the_servers_end() -> None:
    """Over OTLP, whatever seed was asked for: the wire has no integer for each."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    seeded = SamplingParams(seed=2**64 - 1, max_tokens=2)

    async def body(host: EngineHost) -> None:
        tracing = start_tracing(f"http://127.0.0.1:{port}", {})
        assert tracing is not None
        host.watchers.append(tracing.watcher(host.model))
        await ask(host, "a", [1, 2], SHORT)
        await ask(host, "b", [1, 2], seeded)
        await tracing.close()

    try:
        with_host(make_engine(), body)
    finally:
        server.stop(None).wait(timeout=60)
    names = [{a.key: a.value for a in span.attributes} for span in collector.spans]
    ids = [attributes["gen_ai.response.id"].string_value for attributes in names]
    assert ids == ["a", "b"]
    assert names[0]["gen_ai.usage.input_tokens"].int_value == 2
    assert "gen_ai.request.seed" not in names[1]


HTTP = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
TO_COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


@pytest.mark.parametrize("endpoint", [None, "http://127.0.0.1:1"])
@pytest.mark.parametrize(
    "switch", [{"OTEL_SDK_DISABLED": "TRUE"}, {"OTEL_TRACES_EXPORTER": "none"}]
)
def test_the_standard_switches_end_tracing(
    endpoint: str | None, switch: dict[str, str]
) -> None:
    """Whoever asked for it."""
    assert start_tracing(endpoint, TO_COLLECTOR | switch) is None


@pytest.mark.parametrize("environment", [{}, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, HTTP])
def test_nothing_is_traced_unless_there_is_an_endpoint(
    environment: dict[str, str],
) -> None:
    """By option or variable; an empty variable is none."""
    assert start_tracing(None, environment) is None


def test_an_endpoint_of_another_protocol_is_refused() -> None:
    """Rather than every span lost; an option is of ours, and a nearer variable wins."""
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_PROTOCOL is 'http/proto"):
        start_tracing(None, TO_COLLECTOR | HTTP)
    nearer = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}
    tracings = [
        start_tracing("http://127.0.0.1:1", HTTP),
        start_tracing(None, TO_COLLECTOR | HTTP | nearer),
    ]
    for tracing in tracings:
        assert tracing is not None
        asyncio.run(tracing.close())


def test_off_means_that_nothing_is_imported() -> None:
    """A server without tracing needs no OpenTelemetry, nor its import time."""
    code = (
        "import sys; from hybrid.serving.trace_switch import start_tracing; "
        "assert start_tracing(None, {}) is None; "
        "assert 'opentelemetry' not in sys.modules; assert 'grpc' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - ours


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install."""
    monkeypatch.delitem(sys.modules, "hybrid.serving.tracing")
    exporter = "opentelemetry.exporter.otlp.proto.grpc.trace_exporter"
    monkeypatch.setitem(sys.modules, exporter, None)
    with pytest.raises(ConfigError, match=r"hybrid-llm-engine\[tracing\]"):
        start_tracing("http://127.0.0.1:4317", {})
