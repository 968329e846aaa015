"""Connections on which nothing happens are closed: each takes a file descriptor."""

import asyncio

import pytest

from hybrid.serving import listeners
from hybrid.serving.front_door import FrontDoor
from tests.serving.door_stand import with_door
from tests.serving.raw_http2 import PREFACE, SETTINGS, ShutClient


async def read_to_end(address: str, first: bytes) -> None:
    """Connect, say something or nothing, and wait until the server closes."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(first)
        await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("option", "first"),
    [
        ("grpc.server_handshake_timeout_ms", b""),
        ("grpc.max_connection_idle_ms", PREFACE + bytes([0, 0, 0, SETTINGS, *[0] * 5])),
    ],
)
def test_who_says_nothing_is_let_go(
    monkeypatch: pytest.MonkeyPatch, option: str, first: bytes
) -> None:
    """Before HTTP/2 has begun, and where no call is made."""
    given = dict(listeners._PUBLIC_OPTIONS)
    monkeypatch.setattr(
        listeners, "_PUBLIC_OPTIONS", tuple((given | {option: 300}).items())
    )
    assert option in given

    async def body(door: FrontDoor) -> None:
        await read_to_end(door.address, first)

    with_door(body)


def test_who_answers_no_ping_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer whose machine is gone closes nothing itself."""
    names = ("keepalive_time_ms", "keepalive_timeout_ms", "http2.ping_timeout_ms")
    short = {f"grpc.{name}": 300 for name in names}
    given = dict(listeners._OPTIONS)
    assert short.keys() <= given.keys()
    monkeypatch.setattr(listeners, "_OPTIONS", tuple((given | short).items()))
    hello = PREFACE + bytes([0, 0, 0, SETTINGS, *[0] * 5])

    async def body(door: FrontDoor) -> None:
        async with ShutClient.connected(door.address) as live:
            await read_to_end(door.address, hello)
            assert not live.is_closed

    with_door(body)
