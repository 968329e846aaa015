"""``/metrics`` over HTTP on a port of its own, in threads of its own.

A scrape waits for nothing but the interpreter, and stalls no request.
"""

import asyncio
from socket import AF_INET, AF_INET6
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import Any, Final, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from hybrid.scheduler import ConfigError

MAX_SCRAPES: Final = 16
"""At once; each takes a thread. More connections are closed unanswered."""
SCRAPE_TIMEOUT_S: Final = 10.0
"""For a connection on which nothing comes, or nothing can be sent."""


class _Scrape(WSGIRequestHandler):
    """One connection, one answer; logs nothing."""

    timeout = SCRAPE_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name
        """Say nothing: scrapes come every few seconds."""


class _Port(ThreadingMixIn, WSGIServer):
    """A thread for each connection, up to a number."""

    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        # Read by the base class, which binds.
        self.address_family = AF_INET6 if ":" in host else AF_INET
        self._room: Final = BoundedSemaphore(MAX_SCRAPES)
        super().__init__((host, port), _Scrape)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin to answer a connection, or close it."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection and leave."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of one that has gone, or has not asked in time."""


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
            server = await asyncio.to_thread(_Port, host, port)
        except OSError as error:
            raise ConfigError(
                f"metrics_port is {port}, which cannot be opened on {host}: {error}"
            ) from error
        server.set_app(make_wsgi_app(registry))
        thread = Thread(target=server.serve_forever, name="hybrid-metrics", daemon=True)
        thread.start()
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
