"""What an operator sees of a running server: metrics, and spans of its requests."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import (
    trace_service_pb2,
    trace_service_pb2_grpc,
)
from prometheus_client.parser import text_string_to_metric_families

from tests.serving.serve_process import addresses, connected, started
from tests.serving.service_stand import request


def test_metrics_are_on_their_own_port(tmp_path: Path) -> None:
    """A request that was answered is counted there."""
    with started(tmp_path, "--port", "0", "--metrics-port", "0") as server:
        ports = addresses(server)
        with connected(ports["grpc"]) as client:
            list(client.stream(request([1, 2, 3], max_tokens=5)))
        with urlopen(ports["metrics"], timeout=60) as page:  # noqa: S310 - our own
            families = text_string_to_metric_families(page.read().decode())
        samples = {s.name: s.value for family in families for s in family.samples}
    assert samples["vllm:generation_tokens_total"] == 5


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


@pytest.fixture
def collector() -> Iterator[tuple[Collector, str]]:
    """A collector, and where it is."""
    taken = Collector()
    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(taken, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield taken, f"http://127.0.0.1:{port}"
    server.stop(None).wait(60)


def test_spans_reach_the_collector(
    tmp_path: Path, collector: tuple[Collector, str]
) -> None:
    """A request's span hangs under its client's, and is sent by the server's end."""
    taken, url = collector
    trace_id, parent_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    parent = (("traceparent", f"00-{trace_id}-{parent_id}-01"),)
    options = ("--port", "0", "--otlp-traces-endpoint", url)
    with started(tmp_path, *options) as server:
        with connected(addresses(server)["grpc"]) as client:
            list(client.engine.Generate(request([1, 2]), metadata=parent, timeout=60))
        server.signal()
        assert server.wait() == 0
    (span,) = taken.spans
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (trace_id, parent_id)
