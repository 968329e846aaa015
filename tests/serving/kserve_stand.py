"""Runs the KServe service on a loopback port for the length of one test."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from hybrid import AsyncHybridEngine, HybridEngine
from hybrid.engine_builder import LoadedEngine
from hybrid.serving.engine_host import EngineHost
from hybrid.serving.kserve_messages import MESSAGES, SERVICE
from hybrid.serving.kserve_service import add_kserve
from hybrid.serving.kserve_tensors import read_inputs
from hybrid.serving.served_model import ServedModel
from tests.serving.service_stand import TIMEOUT_S, server_and_table

T = TypeVar("T")
Message = Any


@dataclass(frozen=True)
class KServed:
    """A running service, and a channel to it."""

    host: EngineHost
    engine: HybridEngine
    channel: Any
    address: str

    async def call(self, name: str, /, **fields: Any) -> Message:
        """Call a method that answers once, with a request of these fields."""
        return await self.send(name, MESSAGES[f"{name}Request"](**fields))

    def send(self, name: str, message: Message) -> Any:
        """The call of a method that answers once."""
        return self.channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=type(message).SerializeToString,
            response_deserializer=MESSAGES[f"{name}Response"].FromString,
        )(message)

    def stream(self) -> Any:
        """An open stream of requests."""
        return self.channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            request_serializer=MESSAGES["ModelInferRequest"].SerializeToString,
            response_deserializer=MESSAGES["ModelStreamInferResponse"].FromString,
        )()


def serve_kserve(loaded: LoadedEngine, body: Callable[[KServed], Awaitable[T]]) -> T:
    """Run ``body`` against a service of a model named ``tiny``; bounded."""

    async def main() -> T:
        server, table = server_and_table()
        port = server.add_insecure_port("127.0.0.1:0")
        address = f"127.0.0.1:{port}"
        model = ServedModel.of(loaded, name="tiny")
        async with AsyncHybridEngine(loaded.engine) as engine:
            host = EngineHost(engine, model)
            add_kserve(table, host)
            await server.start()
            try:
                async with (
                    asyncio.timeout(TIMEOUT_S),
                    grpc.aio.insecure_channel(address) as channel,
                ):
                    return await body(KServed(host, loaded.engine, channel, address))
            finally:
                await server.stop(None)

    return asyncio.run(main())


def infer_request(text: str = "Hello", **parameters: Any) -> Message:
    """A ``ModelInferRequest``; greedy, eight tokens, unless told otherwise."""
    message = MESSAGES["ModelInferRequest"](model_name="tiny", id="7")
    add_input(message, "text_input", "BYTES", bytes_contents=[text.encode()])
    values = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True} | parameters
    for name, value in values.items():
        match value:
            case None:
                continue
            case bool():
                message.parameters[name].bool_param = value
            case int():
                message.parameters[name].int64_param = value
            case float():
                message.parameters[name].double_param = value
            case _:
                message.parameters[name].string_param = value
    return message


def streamed(text: str = "Hello", **parameters: Any) -> Message:
    """The same, to be answered piece by piece."""
    message = infer_request(text, **parameters)
    add_input(message, "stream", "BOOL", bool_contents=[True])
    return message


def add_input(message: Message, name: str, datatype: str, **contents: Any) -> None:
    """Add an input tensor of one dimension."""
    (values,) = contents.values()
    tensor = message.inputs.add(name=name, datatype=datatype, shape=[len(values)])
    tensor.contents.CopyFrom(MESSAGES["InferTensorContents"](**contents))


def tensors(response: Message) -> dict[str, list[Any]]:
    """The output tensors of a response; they are written as inputs may be."""
    request = MESSAGES["ModelInferRequest"]()
    for tensor in response.outputs:
        request.inputs.add(
            name=tensor.name, datatype=tensor.datatype, shape=tensor.shape
        )
    request.raw_input_contents.extend(response.raw_output_contents)
    return read_inputs(request)


def numbered(message: Message, number: int) -> Message:
    """The same request under another id."""
    message.id = str(number)
    return message


async def responses(call: Any, *messages: Message) -> list[Message]:
    """Send all of a stream's requests, read it to its end; without envelopes."""
    for message in messages:
        await call.write(message)
    await call.done_writing()
    answers = []
    async for answer in call:
        assert not answer.error_message
        answers.append(answer.infer_response)
    return answers
