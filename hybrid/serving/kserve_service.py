"""``inference.GRPCInferenceService`` over one engine host.

The Open Inference Protocol's core, and Triton's stream. Texts in, texts out.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final
from uuid import uuid4

import grpc

from hybrid._version import __version__
from hybrid.input_processor import check_request_id
from hybrid.outputs import RequestOutput
from hybrid.scheduler import InvalidRequest

from .engine_host import EngineHost, HostState
from .kserve_answer import InferAnswer
from .kserve_messages import MESSAGES, SERVICE
from .kserve_request import (
    OUTPUTS,
    STREAM_INPUT,
    TEXT_INPUT,
    VERSION,
    InferRequest,
    check_model,
    is_served,
    parse_infer_request,
)
from .kserve_stream import InferStream
from .live_requests import with_suffix
from .rpc_errors import errors_as_status

_UNARY: Final = (
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelInfer",
)


class KServeService:
    """Every RPC of the service; runs in the event loop that owns ``host``.

    What a method raises becomes a status by the ``ServiceTable`` that it is called by.
    """

    def __init__(self, host: EngineHost) -> None:
        self._host: Final = host

    async def ServerLive(self, request: Any, context: Any) -> Any:
        """Whether the server is worth keeping."""
        is_live = self._host.state is not HostState.FAILED
        return MESSAGES["ServerLiveResponse"](live=is_live)

    async def ServerReady(self, request: Any, context: Any) -> Any:
        """Whether requests are taken."""
        is_ready = self._host.state is HostState.READY
        return MESSAGES["ServerReadyResponse"](ready=is_ready)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        """Whether requests for a model are taken; for an unknown one they are not."""
        is_ready = self._host.state is HostState.READY and is_served(
            request.name, request.version, self._host.model
        )
        return MESSAGES["ModelReadyResponse"](ready=is_ready)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        """What serves."""
        return MESSAGES["ServerMetadataResponse"](name="hybrid", version=__version__)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        """What goes in and comes out; -1 stands for the number of samples."""
        model = self._host.model
        check_model(request.name, request.version, model)
        inputs = {TEXT_INPUT: "BYTES", STREAM_INPUT: "BOOL"}
        return MESSAGES["ModelMetadataResponse"](
            name=model.name,
            versions=[VERSION],
            platform=f"hybrid_{model.executor}",
            inputs=[_tensor(name, kind, 1) for name, kind in inputs.items()],
            outputs=[_tensor(name, kind, -1) for name, kind in OUTPUTS.items()],
        )

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        """Continue one text; the answer comes whole."""
        parsed = parse_infer_request(request, self._host.model)
        if parsed.stream:
            raise InvalidRequest(
                f"input {STREAM_INPUT} is true: pieces come by ModelStreamInfer",
                field=STREAM_INPUT,
                value=True,
            )
        async with aclosing(self._outputs(request, parsed)) as outputs:
            async for output in outputs:
                if output.finished:
                    return InferAnswer(request, parsed).whole(output)
        raise AssertionError("an answer ends with a last output or an error")

    async def ModelStreamInfer(self, _requests: Any, context: Any) -> None:
        """Continue texts, any number on one stream."""
        async with errors_as_status(context):
            await InferStream(context, self._answers).run()

    async def _answers(self, request: Any) -> AsyncGenerator[Any]:
        parsed = parse_infer_request(request, self._host.model)
        answer = InferAnswer(request, parsed)
        async with aclosing(self._outputs(request, parsed)) as outputs:
            async for output in outputs:
                for response in answer.pieces(output):
                    yield response

    def _outputs(
        self, request: Any, parsed: InferRequest
    ) -> AsyncGenerator[RequestOutput]:
        client_id = request.id or "kserve"
        check_request_id(client_id)
        return self._host.generate(
            parsed.prompt,
            parsed.params,
            # Clients choose their ids, and two may choose the same.
            request_id=with_suffix(client_id, f"-{uuid4().hex}"),
            num_prompt_tokens=parsed.num_prompt_tokens,
            stream=parsed.stream,
        )


def _tensor(name: str, datatype: str, size: int) -> Any:
    return MESSAGES["TensorMetadata"](name=name, datatype=datatype, shape=[size])


def add_kserve(server: Any, host: EngineHost) -> None:
    """Add the service to a server.

    Args:
        server: a ``ServiceTable``.
        host: of the engine that answers.
    """
    service = KServeService(host)
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            getattr(service, name),
            request_deserializer=MESSAGES[f"{name}Request"].FromString,
            response_serializer=MESSAGES[f"{name}Response"].SerializeToString,
        )
        for name in _UNARY
    }
    handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
        service.ModelStreamInfer,
        response_serializer=MESSAGES["ModelStreamInferResponse"].SerializeToString,
    )
    generic = grpc.method_handlers_generic_handler(SERVICE, handlers)
    server.add_generic_rpc_handlers((generic,))
