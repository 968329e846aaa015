"""Opens a server's ports over a null engine for the length of one test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

from hybrid import AsyncHybridEngine, HybridEngine
from hybrid.serving.engine_host import EngineHost
from hybrid.serving.front_door import FrontDoor
from hybrid.serving.serve_config import ServeConfig
from hybrid.serving.vllm_service import VllmEngineService
from tests.hybrid.null_stand import make_engine
from tests.serving.service_stand import TIMEOUT_S, collect, model_of, request

T = TypeVar("T")
SERVICE = "vllm.grpc.engine.VllmEngine"


@asynccontextmanager
async def open_door(
    config: ServeConfig, tokens: Sequence[str] = (), engine: HybridEngine | None = None
) -> AsyncIterator[FrontDoor]:
    """Open the ports and serve."""
    engine = engine or make_engine()
    door = await FrontDoor.open(config, tokens, [SERVICE])
    try:
        async with AsyncHybridEngine(engine) as asynchronous:
            host = EngineHost(asynchronous, model_of(engine))
            service = VllmEngineService(host)
            pb_grpc.add_VllmEngineServicer_to_server(service, door.services)
            await door.set_ready()
            yield door
    finally:
        await door.close()


def with_door(
    body: Callable[[FrontDoor], Awaitable[T]],
    tokens: Sequence[str] = (),
    engine: HybridEngine | None = None,
    **options: Any,
) -> T:
    """Run ``body`` beside open ports; bounded."""

    async def main() -> T:
        config = ServeConfig(**({"port": 0} | options))
        async with (
            asyncio.timeout(TIMEOUT_S),
            open_door(config, tokens, engine) as door,
        ):
            return await body(door)

    return asyncio.run(main())


async def answer(channel: Any, token: str | None = None, **sampling: Any) -> int:
    """The number of tokens that a request is answered by."""
    metadata = () if token is None else (("authorization", token),)
    call = pb_grpc.VllmEngineStub(channel).Generate(
        request([1, 2, 3], **sampling), metadata=metadata
    )
    (complete,) = await collect(call)
    return len(complete.output_ids)


async def health(channel: Any, service: str = "") -> int:
    """What ``grpc.health.v1`` says."""
    stub = health_pb2_grpc.HealthStub(channel)
    message = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    status: int = message.status
    return status


async def status_of(call: Awaitable[Any]) -> grpc.StatusCode:
    """The code with which a call fails; fails the test if it does not."""
    try:
        result = await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    raise AssertionError(f"the call succeeded: {result}")
