"""One OpenTelemetry span a request: sizes, times and ends, never what was said.

Names of attributes are those of the GenAI semantic conventions, and vLLM's
(``vllm/tracing``) for the times that these do not have. Nothing here is global.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self

import grpc
from opentelemetry.context import attach
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from hybrid._version import __version__
from hybrid.outputs import RequestOutput
from hybrid.scheduler import FinishReason, SamplingParams

from .served_model import ServedModel

OPERATION: Final = "text_completion"
MAX_INTEGER: Final = 2**63 - 1
"""Of an attribute; a greater one (a seed may be) would spoil its whole batch."""
CLIENT_LEFT: Final = (asyncio.CancelledError, GeneratorExit)


class Tracing:
    """Where spans go, from the start of a server to its end."""

    def __init__(self, processor: SpanProcessor) -> None:
        """Send ended spans to ``processor``; sampling is the environment's choice."""
        # The environment's service name and attributes come last: they win.
        resource = Resource.create(
            {"service.name": "hybrid", "service.version": __version__}
        ).merge(OTELResourceDetector().detect())
        self._provider: Final = TracerProvider(resource=resource)
        self._provider.add_span_processor(processor)

    @classmethod
    def to_collector(cls, endpoint: str | None) -> Self:
        """Send spans by OTLP over gRPC, in batches and from a thread of their own.

        Args:
            endpoint: ``http://`` is plaintext, ``https://`` TLS; ``None``: what
                ``OTEL_EXPORTER_OTLP_...`` says.
        """
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))

    def watcher(self, model: ServedModel) -> "RequestTracer":
        """Make what an engine host shall tell of its requests."""
        return RequestTracer(self._provider.get_tracer("hybrid", __version__), model)

    async def close(self) -> None:
        """Send what is left and end; a collector that is gone is given some seconds."""
        await asyncio.to_thread(self._provider.shutdown)


class TraceContextInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc] # untyped
    """Takes a call's parent span from its ``traceparent`` metadata (W3C)."""

    _propagator: Final = TraceContextTextMapPropagator()

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        """Set the context of the call's task, which ends with the call."""
        texts = {
            key: value
            for key, value in details.invocation_metadata or ()
            if isinstance(value, str)
        }
        attach(self._propagator.extract(texts))
        return await continuation(details)


class RequestTracer:
    """A ``RequestWatcher``; used in the event loop only."""

    def __init__(self, tracer: Tracer, model: ServedModel) -> None:
        self._tracer: Final = tracer
        self._model: Final = model
        self._spans: Final[dict[str, Span]] = {}

    def began(self, request_id: str, params: SamplingParams) -> None:
        """Open a span under that of the client's call, if there is one."""
        self._spans[request_id] = self._tracer.start_span(
            f"{OPERATION} {self._model.name}",
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": OPERATION,
                "gen_ai.provider.name": "hybrid",
                "gen_ai.request.model": self._model.name,
                "gen_ai.response.model": self._model.name,
                "gen_ai.response.id": request_id,
                "hybrid.executor": self._model.executor,
                **_asked(params),
            },
        )

    def progressed(self, output: RequestOutput) -> None:
        """The last output repeats what all others said."""

    def ended(self, request_id: str, end: RequestOutput | BaseException) -> None:
        """Close the span; an error's text stays out, for it may quote the prompt."""
        span = self._spans.pop(request_id)
        if isinstance(end, RequestOutput):
            span.set_attributes(_answered(end))
            if end.error is not None:
                _fail(span, "_OTHER")
        elif isinstance(end, CLIENT_LEFT):
            abort = FinishReason.ABORT.value
            span.set_attribute("gen_ai.response.finish_reasons", [abort])
        else:
            _fail(span, type(end).__qualname__)
        span.end()


def _fail(span: Span, error_type: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(StatusCode.ERROR)


def _asked(params: SamplingParams) -> dict[str, AttributeValue]:
    asked: dict[str, float | None] = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k or None,
        "frequency_penalty": params.frequency_penalty or None,
        "presence_penalty": params.presence_penalty or None,
        "seed": params.seed,
        "choice.count": params.n if params.n > 1 else None,
    }
    return {
        f"gen_ai.request.{name}": value
        for name, value in asked.items()
        if value is not None and value <= MAX_INTEGER
    }


def _answered(output: RequestOutput) -> dict[str, AttributeValue]:
    metrics = output.metrics
    reasons = [sample.finish_reason for sample in output.outputs]
    answered: dict[str, AttributeValue | None] = {
        "gen_ai.response.finish_reasons": [
            reason.value for reason in reasons if reason
        ],
        "gen_ai.usage.input_tokens": metrics.num_prompt_tokens,
        "gen_ai.usage.output_tokens": metrics.num_output_tokens,
        "gen_ai.usage.cache_read.input_tokens": metrics.num_cached_tokens,
        "gen_ai.latency.time_in_queue": metrics.queue_s,
        "gen_ai.latency.time_to_first_token": metrics.ttft_s,
        "gen_ai.latency.e2e": metrics.total_s,
        "hybrid.num_preemptions": metrics.num_preemptions,
    }
    return {name: value for name, value in answered.items() if value is not None}
