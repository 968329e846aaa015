"""One span a request, with sizes and times, under its caller's; no word of it."""

import asyncio
from collections.abc import Iterator, Mapping

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    SpanKind,
    StatusCode,
    get_current_span,
)
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

from hybrid import InvalidRequest, SamplingParams
from hybrid.scheduler import ExecutorFailed, StepPlan
from hybrid.serving.engine_host import EngineHost
from hybrid.serving.tracing import TraceContextInterceptor, Tracing
from hybrid.serving.vllm_service import VllmEngineService
from tests.hybrid.null_stand import FaultyExecutor, HeldExecutor, make_engine
from tests.serving.host_stand import ask, with_host
from tests.serving.service_stand import collect, request, server_and_table

SHORT = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
TRACE_ID, SPAN_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
TRACEPARENT = f"00-{TRACE_ID:032x}-{SPAN_ID:016x}-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """Keeps the spans of one test."""
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> Iterator[Tracing]:
    """Sends each span at once."""
    tracing = Tracing(SimpleSpanProcessor(exporter))
    yield tracing
    asyncio.run(tracing.close())


def attributes_of(span: ReadableSpan) -> Mapping[str, object]:
    """What a span says; never nothing."""
    assert span.attributes
    return span.attributes


def test_a_span_says_what_was_asked_and_what_came(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    """Its numbers are those of the last output; without a caller it is a root."""
    params = SamplingParams(temperature=0.5, top_k=7, seed=3, n=2, max_tokens=5)

    async def body(host: EngineHost) -> None:
        host.watchers.append(tracing.watcher(host.model))
        await ask(host, "warm", range(1, 10), SHORT)
        (*_, last) = await ask(host, "r", range(1, 10), params)
        _, span = exporter.get_finished_spans()
        metrics = last.metrics
        assert dict(attributes_of(span)) == {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "hybrid",
            "gen_ai.request.model": "tiny",
            "gen_ai.response.model": "tiny",
            "gen_ai.response.id": "r",
            "hybrid.executor": "null",
            "gen_ai.request.max_tokens": 5,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.top_p": 1.0,
            "gen_ai.request.top_k": 7,
            "gen_ai.request.seed": 3,
            "gen_ai.request.choice.count": 2,
            "gen_ai.response.finish_reasons": tuple(
                sample.finish_reason.value for sample in last.outputs
            ),
            "gen_ai.usage.input_tokens": 9,
            "gen_ai.usage.output_tokens": metrics.num_output_tokens,
            "gen_ai.usage.cache_read.input_tokens": 8,
            "gen_ai.latency.time_in_queue": metrics.queue_s,
            "gen_ai.latency.time_to_first_token": metrics.ttft_s,
            "gen_ai.latency.e2e": metrics.total_s,
            "hybrid.num_preemptions": 0,
        }
        assert (span.name, span.kind) == ("text_completion tiny", SpanKind.SERVER)
        assert span.status.status_code is StatusCode.UNSET
        assert span.parent is None

    with_host(make_engine(num_blocks=64), body)


def test_names_are_those_of_the_conventions(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    """But for vLLM's latencies and our own, each stands in the published list."""
    known = {
        value
        for name, value in vars(gen_ai_attributes).items()
        if name.startswith("GEN_AI_")
    }

    async def body(host: EngineHost) -> None:
        host.watchers.append(tracing.watcher(host.model))
        await ask(host, "r", [1, 2], SHORT)

    with_host(make_engine(), body)
    (span,) = exporter.get_finished_spans()
    names = {
        name
        for name in attributes_of(span)
        if not name.startswith(("gen_ai.latency.", "hybrid."))
    }
    assert names
    assert names <= known


def test_a_client_that_leaves_ends_its_span_once(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    """As aborted, which is no error of the server."""
    executor = HeldExecutor()

    async def body(host: EngineHost) -> None:
        watcher = tracing.watcher(host.model)
        host.watchers.append(watcher)
        outputs = host.generate([1, 2], LONG, request_id="r", num_prompt_tokens=2)
        await anext(outputs)
        assert not exporter.get_finished_spans()
        await outputs.aclose()
        executor.let_go()
        (span,) = exporter.get_finished_spans()
        assert attributes_of(span)["gen_ai.response.finish_reasons"] == ("abort",)
        assert span.status.status_code is StatusCode.UNSET
        assert not watcher._spans

    with_host(make_engine(num_blocks=64, executor=executor), body)


def test_errors_end_spans_by_name_alone(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    """Their texts, which may quote what was asked, stay out."""

    def fault(_: StepPlan) -> None:
        raise RuntimeError("device lost with a secret")

    async def body(host: EngineHost) -> None:
        host.watchers.append(tracing.watcher(host.model))
        with pytest.raises(InvalidRequest):
            await ask(host, "bad", [98765], SHORT)
        with pytest.raises(ExecutorFailed):
            await ask(host, "unlucky", [1, 2], SHORT)

    with_host(make_engine(executor=FaultyExecutor(fault)), body)
    spans = exporter.get_finished_spans()
    names = [attributes_of(span)["error.type"] for span in spans]
    assert names == ["InvalidRequest", "ExecutorFailed"]
    for span in spans:
        assert span.status.status_code is StatusCode.ERROR
        assert not span.events
        assert "98765" not in span.to_json()
        assert "secret" not in span.to_json()


def test_a_draw_that_is_impossible_shows_as_an_error(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    """The stream ends in order, its request does not."""

    class Broken:
        """Processes every request, and fails."""

        def applies_to(self, *_arguments: object) -> bool:
            """Every one."""
            return True

        def apply(self, *_arguments: object) -> None:
            """Fail."""
            raise RuntimeError("no")

    async def body(host: EngineHost) -> None:
        host.watchers.append(tracing.watcher(host.model))
        (*_, last) = await ask(host, "r", [1, 2], SHORT)
        assert last.error

    engine = make_engine(logits_processors=[Broken()])
    with_host(engine, body)
    (span,) = exporter.get_finished_spans()
    assert attributes_of(span)["gen_ai.response.finish_reasons"] == ("error",)
    assert attributes_of(span)["error.type"] == "_OTHER"
    assert span.status.status_code is StatusCode.ERROR


def test_a_calls_traceparent_is_the_parent(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    """Through a real server; a call without one, or with a broken one, is a root."""

    async def body(host: EngineHost) -> None:
        host.watchers.append(tracing.watcher(host.model))
        server, table = server_and_table(interceptors=[TraceContextInterceptor()])
        port = server.add_insecure_port("127.0.0.1:0")
        pb_grpc.add_VllmEngineServicer_to_server(VllmEngineService(host), table)
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub = pb_grpc.VllmEngineStub(channel)
                for metadata in (
                    (("traceparent", TRACEPARENT), ("blob-bin", b"\xff")),
                    (),
                    (("traceparent", "nonsense"),),
                ):
                    message = request([1, 2], max_tokens=2)
                    await collect(stub.Generate(message, metadata=metadata))
        finally:
            await server.stop(None)
        assert get_current_span().get_span_context() == INVALID_SPAN_CONTEXT

    with_host(make_engine(), body)
    child, *roots = exporter.get_finished_spans()
    assert child.parent is not None
    assert (child.parent.trace_id, child.parent.span_id) == (TRACE_ID, SPAN_ID)
    assert child.context.trace_id == TRACE_ID
    assert [span.parent for span in roots] == [None, None]
