"""Ports: transport, certificates, message sizes, what is shown to strangers."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

from hybrid.scheduler import ConfigError
from hybrid.serving.front_door import FrontDoor
from tests.serving.certificates import (
    Identity,
    channel_credentials,
    make_authority,
    sign,
)
from tests.serving.door_stand import SERVICE, answer, health, status_of, with_door
from tests.serving.service_stand import collect, request

SETTINGS, PING, GOAWAY = 4, 6, 7
"""Types of HTTP/2 frames."""


class Keys:
    """An authority with a server and a client of its own, and a stranger's client."""

    def __init__(self, folder: Path) -> None:
        self.authority = make_authority(folder, "authority")
        self.server = sign(folder, "server", self.authority)
        self.client = sign(folder, "client", self.authority)
        self.strangers_client = sign(
            folder, "stranger", make_authority(folder, "strangers-authority")
        )

    @property
    def tls(self) -> dict[str, Path]:
        """The options of a server with TLS."""
        return {"tls_cert": self.server.cert, "tls_key": self.server.key}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """Made once: openssl takes a while."""
    return Keys(tmp_path_factory.mktemp("keys"))


def secure(door: FrontDoor, authority: Identity, client: Identity | None = None) -> Any:
    """A channel to a port with TLS."""
    return grpc.aio.secure_channel(door.address, channel_credentials(authority, client))


def test_tls(keys: Keys) -> None:
    """Who trusts the authority gets in; who trusts another or none does not."""

    async def body(door: FrontDoor) -> None:
        async with secure(door, keys.authority) as channel:
            assert await answer(channel) == 8
        async with secure(door, keys.strangers_client) as channel:
            assert await status_of(answer(channel)) is grpc.StatusCode.UNAVAILABLE
        async with grpc.aio.insecure_channel(door.address) as channel:
            assert await status_of(answer(channel)) is grpc.StatusCode.UNAVAILABLE

    with_door(body, **keys.tls)


def test_client_certificates(keys: Keys) -> None:
    """With a client authority, only its certificates are let in."""

    async def body(door: FrontDoor) -> None:
        async with secure(door, keys.authority, keys.client) as channel:
            assert await answer(channel) == 8
        for client in (None, keys.strangers_client):
            async with secure(door, keys.authority, client) as channel:
                code = await status_of(answer(channel))
                assert code is grpc.StatusCode.UNAVAILABLE

    with_door(body, **keys.tls, tls_client_ca=keys.authority.cert)


def test_the_gateways_port_is_plaintext_beside_tls_and_token(keys: Keys) -> None:
    """The gateway speaks neither; its port is on loopback, whatever the other is on."""

    async def body(door: FrontDoor) -> None:
        listener = door.gateway_listener
        assert listener is not None
        assert listener.address == f"127.0.0.1:{listener.port}"
        async with grpc.aio.insecure_channel(listener.address) as channel:
            assert await answer(channel) == 8
        async with secure(door, keys.authority) as channel:
            assert await status_of(answer(channel)) is grpc.StatusCode.UNAUTHENTICATED
            assert await answer(channel, "Bearer secret") == 8

    with_door(body, ["secret"], **keys.tls, http_port=8000, host="localhost")


def test_a_key_of_another_certificate_is_refused(keys: Keys) -> None:
    """The error comes at the start, not with the first client."""

    async def body(_door: FrontDoor) -> None:
        raise AssertionError("it opened")

    with pytest.raises(ConfigError, match="does not fit its key"):
        with_door(body, tls_cert=keys.server.cert, tls_key=keys.client.key)


@pytest.mark.parametrize("option", ["tls_cert", "tls_key", "tls_client_ca"])
def test_a_file_without_pem_is_named(keys: Keys, tmp_path: Path, option: str) -> None:
    """An option that points at the wrong file is told by name; so is one at none."""
    files = {**keys.tls, "tls_client_ca": keys.authority.cert}
    (tmp_path / "notes").write_text("nothing secret", "utf-8")

    async def body(_door: FrontDoor) -> None:
        raise AssertionError("it opened")

    with pytest.raises(ConfigError, match=f"{option} is .*notes"):
        with_door(body, **(files | {option: tmp_path / "notes"}))
    with pytest.raises(FileNotFoundError, match="absent"):
        with_door(body, **(files | {option: tmp_path / "absent"}))


def test_a_message_over_the_limit_is_refused_and_the_server_lives() -> None:
    """Both ways: a prompt that is too long for us, an answer too long for a client."""

    async def body(door: FrontDoor) -> None:
        async with grpc.aio.insecure_channel(door.address) as channel:
            stub = pb_grpc.VllmEngineStub(channel)
            long = stub.Generate(request([1] * 3000))
            assert await status_of(collect(long)) is grpc.StatusCode.RESOURCE_EXHAUSTED
            talkative = answer(channel, max_tokens=100, logprobs=20, ignore_eos=True)
            assert await status_of(talkative) is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await answer(channel) == 8

    with_door(body, max_request_bytes=2048, max_response_bytes=2048)


def shown_services(address: str) -> list[str]:
    """What reflection lists, to the official client."""
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        names: list[str] = list(database.get_services())
        assert database.FindFileContainingSymbol(SERVICE).package == "vllm.grpc.engine"
        return names


def test_reflection_is_for_this_machine_unless_asked_for() -> None:
    """On loopback clients may list the services; elsewhere that is an option."""

    async def body(door: FrontDoor) -> list[str]:
        return await asyncio.to_thread(shown_services, door.address)

    expected = {
        SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    assert set(with_door(body)) == expected
    with pytest.raises(grpc.RpcError) as refused:
        with_door(body, reflection=False)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_health_by_name() -> None:
    """The server as a whole and the service by name; an unknown name is NOT_FOUND."""

    async def body(door: FrontDoor) -> None:
        async with grpc.aio.insecure_channel(door.address) as channel:
            for name in ("", SERVICE):
                assert await health(channel, name) == HealthCheckResponse.SERVING
            unknown = health(channel, "no.such.Service")
            assert await status_of(unknown) is grpc.StatusCode.NOT_FOUND
            await door.set_ending()
            for name in ("", SERVICE):
                assert await health(channel, name) == HealthCheckResponse.NOT_SERVING
            assert await answer(channel) == 8

    with_door(body)


def test_an_unknown_method_is_unimplemented() -> None:
    """A gateway tries one engine's protocol after another, and goes by this code."""

    async def body(door: FrontDoor) -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(door.address) as channel:
            call = channel.unary_unary("/sglang.grpc.scheduler.SglangScheduler/Abort")
            return await status_of(call(b""))

    assert with_door(body) is grpc.StatusCode.UNIMPLEMENTED


async def ping(address: str, number: int) -> list[int]:
    """Send raw HTTP/2 pings; the types of the frames that came back (RFC 9113).

    The client library itself sends at most one a second.
    """
    reader, writer = await asyncio.open_connection(*address.split(":"))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    writer.write(bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]))
    for index in range(number):
        writer.write(bytes([0, 0, 8, PING, 0, 0, 0, 0, 0]) + index.to_bytes(8, "big"))
    kinds: list[int] = []
    while GOAWAY not in kinds and kinds.count(PING) < number:
        head = await reader.readexactly(9)
        await reader.readexactly(int.from_bytes(head[:3], "big"))
        kinds.append(head[3])
    writer.close()
    await writer.wait_closed()
    return kinds


def test_pings_are_no_offence() -> None:
    """A gateway keeps a silent connection alive; by default three would end it."""

    async def body(door: FrontDoor) -> list[int]:
        return await ping(door.address, 20)

    assert GOAWAY not in with_door(body)


def test_a_server_that_starts_refuses_calls_of_every_kind() -> None:
    """Until there is an engine each method answers UNAVAILABLE, and health answers."""

    async def body(door: FrontDoor) -> None:
        door.services.is_open = False
        async with grpc.aio.insecure_channel(door.address) as channel:
            stub = pb_grpc.VllmEngineStub(channel)
            one = stub.GetModelInfo(pb.GetModelInfoRequest())
            assert await status_of(one) is grpc.StatusCode.UNAVAILABLE
            many = collect(stub.Generate(request([1])))
            assert await status_of(many) is grpc.StatusCode.UNAVAILABLE
            assert await health(channel) == HealthCheckResponse.SERVING

    with_door(body)
