"""Health is answered beside a step, however long that takes."""

import asyncio

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

from hybrid.serving.engine_host import EngineHost
from hybrid.serving.front_door import FrontDoor
from hybrid.serving.vllm_service import VllmEngineService
from tests.hybrid.null_stand import HeldExecutor, make_engine
from tests.serving.door_stand import answer, health, with_door
from tests.serving.host_stand import with_host

NUM_CALLS = 50


def test_it_is_answered_while_a_step_is_held() -> None:
    """Each way of asking is served, again and again, and the request is still there."""
    executor = HeldExecutor(num_free_steps=0)

    async def body(door: FrontDoor) -> None:
        async with grpc.aio.insecure_channel(door.address) as channel:
            engine = pb_grpc.VllmEngineStub(channel)
            running = asyncio.create_task(answer(channel, max_tokens=3))
            try:
                while (await _info(engine)).active_requests == 0:
                    pass
                for _ in range(NUM_CALLS):
                    assert await health(channel) == HealthCheckResponse.SERVING
                    own = await engine.HealthCheck(pb.HealthCheckRequest())
                    assert own.healthy
                assert (await _info(engine)).active_requests == 1
                assert not running.done()
            finally:
                executor.let_go()
            assert await running == 3

    with_door(body, engine=make_engine(executor=executor))


def test_it_is_answered_in_one_turn_of_the_loop() -> None:
    """It waits for nothing: neither for the engine's thread nor for another task."""

    async def body(host: EngineHost) -> None:
        call = VllmEngineService(host).HealthCheck(pb.HealthCheckRequest(), None)
        with pytest.raises(StopIteration) as answered:
            call.send(None)
        assert answered.value.value.healthy

    with_host(make_engine(), body)


async def _info(engine: pb_grpc.VllmEngineStub) -> pb.GetServerInfoResponse:
    return await engine.GetServerInfo(pb.GetServerInfoRequest())
