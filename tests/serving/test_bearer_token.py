"""Tokens: where they come from, who gets in with them."""

from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

from hybrid.scheduler import ConfigError
from hybrid.serving.bearer_token import TOKEN_VARIABLE, read_tokens
from hybrid.serving.front_door import FrontDoor
from tests.serving.door_stand import answer, health, status_of, with_door
from tests.serving.service_stand import collect, request

TOKENS = ("new-token", "old-token")
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_each_token_opens(token: str, scheme: str) -> None:
    """While tokens are changed the old one works beside the new one."""

    async def body(door: FrontDoor) -> int:
        async with grpc.aio.insecure_channel(door.address) as channel:
            return await answer(channel, f"{scheme} {token}")

    assert with_door(body, TOKENS) == 8


@pytest.mark.parametrize(
    "sent",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "new-token",
        "Bearer wrong",
        "Bearer new-toke",
        "Bearer new-token2",
        "Bearer new-token old-token",
        "Basic new-token",
        "Bearer  new-token",
    ],
)
def test_anything_else_does_not(sent: str | None) -> None:
    """A part of a token, more than a token, another scheme and none are refused."""

    async def body(door: FrontDoor) -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(door.address) as channel:
            return await status_of(answer(channel, sent))

    assert with_door(body, TOKENS) is UNAUTHENTICATED


def test_two_tokens_in_one_call_are_none() -> None:
    """Whoever stands between may have added one: it is not ours to choose."""

    async def body(door: FrontDoor) -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(door.address) as channel:
            metadata = [("authorization", f"Bearer {token}") for token in TOKENS]
            stub = pb_grpc.VllmEngineStub(channel)
            call = stub.Generate(request([1]), metadata=metadata)
            return await status_of(collect(call))

    assert with_door(body, TOKENS) is UNAUTHENTICATED


def test_every_kind_of_method_is_closed_but_health() -> None:
    """Unary and streaming calls are refused alike; a load balancer needs no token."""

    async def body(door: FrontDoor) -> None:
        async with grpc.aio.insecure_channel(door.address) as channel:
            stub = pb_grpc.VllmEngineStub(channel)
            one = stub.GetModelInfo(pb.GetModelInfoRequest())
            assert await status_of(one) is UNAUTHENTICATED
            many = collect(stub.Generate(request([1])))
            assert await status_of(many) is UNAUTHENTICATED
            reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
            asked = reflection_pb2.ServerReflectionRequest(list_services="")
            both_ways = reflection.ServerReflectionInfo(iter([asked]))
            assert await status_of(both_ways.read()) is UNAUTHENTICATED
            unknown = channel.unary_unary("/no.such.Service/Method")(b"")
            assert await status_of(unknown) is UNAUTHENTICATED
            assert await health(channel) == HealthCheckResponse.SERVING

    with_door(body, TOKENS)


def test_tokens_come_from_a_file_or_else_the_environment(tmp_path: Path) -> None:
    """White space separates them; a file wins; neither means that none is needed."""
    path = tmp_path / "tokens"
    path.write_text("one\n  two three\n\n", "utf-8")
    environ = {TOKEN_VARIABLE: "four five"}
    assert read_tokens(path, environ) == ("one", "two", "three")
    assert read_tokens(None, environ) == ("four", "five")
    assert read_tokens(None, {}) == ()


@pytest.mark.parametrize("text", ["", " \n", "söcret"])
def test_a_source_without_a_usable_token_is_refused(tmp_path: Path, text: str) -> None:
    """An empty file must not mean that everybody is let in; no token is shown."""
    path = tmp_path / "tokens"
    path.write_text(text, "utf-8")
    for given, environ, origin in (
        (path, {}, "token_file"),
        (None, {TOKEN_VARIABLE: text}, TOKEN_VARIABLE),
    ):
        with pytest.raises(ConfigError, match=origin) as refused:
            read_tokens(given, environ)
        assert "cret" not in str(refused.value)


def test_a_token_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A mistyped path must not mean that everybody is let in."""
    with pytest.raises(FileNotFoundError):
        read_tokens(tmp_path / "absent", {TOKEN_VARIABLE: "four"})
