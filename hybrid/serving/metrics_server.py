"""``/metrics`` over HTTP on a port of its own, in threads of its own.

A scrape waits for nothing but the interpreter, and stalls no request.
"""

import asyncio
from threading import Thread
from typing import Final, Self
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from hybrid.scheduler import ConfigError


class MetricsServer:
    """Serves one registry from its start to its close."""

    def __init__(self, server: WSGIServer, thread: Thread) -> None:
        self._server: Final = server
        self._thread: Final = thread

    @classmethod
    async def start(
        cls, registry: CollectorRegistry, *, port: int, host: str = "127.0.0.1"
    ) -> Self:
        """Open the port.

        Args:
            registry: what is told.
            port: 0: any free one.
            host: the address that it is opened on.

        Raises:
            ConfigError: the port cannot be had.
        """
        try:
            server, thread = await asyncio.to_thread(
                start_http_server, port, host, registry
            )
        except OSError as error:
            raise ConfigError(
                f"metrics_port is {port}, which cannot be opened on {host}: {error}"
            ) from error
        return cls(server, thread)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.server_port

    async def close(self) -> None:
        """Close the port; a scrape that is under way gets its answer."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
