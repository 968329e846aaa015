"""A client of HTTP/2 that keeps its windows shut until it is told to open them.

It answers settings and pings, as a live peer does; no library would do it for us.
"""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Self

DATA: Final = 0
HEADERS: Final = 1
SETTINGS: Final = 4
PING: Final = 6
WINDOW_UPDATE: Final = 8
ACK: Final = 1
END_STREAM: Final = 1
END_HEADERS: Final = 4
INITIAL_WINDOW_SIZE: Final = 4
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class ShutClient:
    """One connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader: Final = reader
        self._writer: Final = writer
        self.ended: Final[dict[int, bytes]] = {}
        """By stream: the block of headers that ended it, and the whole connection."""

    @classmethod
    @asynccontextmanager
    async def connected(cls, address: str) -> AsyncIterator[Self]:
        """Connect, and answer what must be answered."""
        host, _, port = address.rpartition(":")
        client = cls(*await asyncio.open_connection(host, int(port)))
        client._writer.write(PREFACE)
        client._send(SETTINGS, payload=struct.pack(">HI", INITIAL_WINDOW_SIZE, 0))
        reading = asyncio.create_task(client._read())
        try:
            yield client
        finally:
            reading.cancel()
            client._writer.close()

    def call(self, stream: int, path: str, message: Any) -> None:
        """Begin a call by one message and the end of the requests."""
        names = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "x",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        block = b"".join(_literal(*entry) for entry in names.items())
        data = message.SerializeToString()
        self._send(HEADERS, END_HEADERS, stream, block)
        payload = b"\0" + struct.pack(">I", len(data)) + data
        self._send(DATA, END_STREAM, stream, payload)

    @property
    def is_closed(self) -> bool:
        """Whether the server has closed the connection."""
        return self._reader.at_eof()

    def open(self, stream: int) -> None:
        """Let the server send a million bytes on a stream."""
        self._send(WINDOW_UPDATE, stream=stream, payload=struct.pack(">I", 1 << 20))

    def _send(
        self, kind: int, flags: int = 0, stream: int = 0, payload: bytes = b""
    ) -> None:
        length = struct.pack(">I", len(payload))[1:]
        head = length + bytes([kind, flags]) + struct.pack(">I", stream)
        self._writer.write(head + payload)

    async def _read(self) -> None:
        while True:
            head = await self._reader.readexactly(9)
            payload = await self._reader.readexactly(int.from_bytes(head[:3]))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:])
            if kind in (SETTINGS, PING) and not flags & ACK:
                self._send(kind, ACK, payload=payload if kind == PING else b"")
            if kind == HEADERS and flags & END_STREAM:
                self.ended[stream] = payload


def _literal(name: str, value: str) -> bytes:
    """A header as HPACK writes it where nothing is compressed."""
    words = (word.encode() for word in (name, value))
    return b"\0" + b"".join(bytes([len(word)]) + word for word in words)
