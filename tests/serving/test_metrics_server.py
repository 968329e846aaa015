"""The metrics page over HTTP: while its server is there, and no longer."""

import asyncio
import socket
import threading
import urllib.request
from contextlib import ExitStack

import pytest

from hybrid import SamplingParams
from hybrid.scheduler import ConfigError
from hybrid.serving import metrics_server
from hybrid.serving.engine_host import EngineHost
from hybrid.serving.metrics_server import MetricsServer
from hybrid.serving.serving_metrics import ServingMetrics
from tests.hybrid.null_stand import make_engine
from tests.serving.host_stand import ask, with_host
from tests.serving.metrics_page import Page

SHORT = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def scrape(port: int) -> str:
    """What the page says."""
    url = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return answer.read().decode()


def test_the_page_is_served_until_the_server_closes() -> None:
    """On a free port, in Prometheus' own format; then the port is free again."""

    async def body(host: EngineHost) -> None:
        metrics = ServingMetrics(host)
        server = await MetricsServer.start(metrics.registry, port=0)
        port = server.port
        await ask(host, "r", [1, 2], SHORT)
        page = Page(await asyncio.to_thread(scrape, port))
        assert page.value("vllm:generation_tokens_total") == 5
        with pytest.raises(ConfigError, match=f"metrics_port is {port}"):
            await MetricsServer.start(metrics.registry, port=port)
        await server.close()
        with pytest.raises(OSError, match="refused"):
            await asyncio.to_thread(scrape, port)
        again = await MetricsServer.start(metrics.registry, port=port)
        await again.close()

    with_host(make_engine(), body)


def test_connections_that_ask_for_nothing_are_few_and_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beyond a number they find no thread; those that found one lose it in time."""
    monkeypatch.setattr(metrics_server._Scrape, "timeout", 1.0)

    def is_closed(connection: socket.socket) -> bool:
        connection.settimeout(30)
        try:
            return connection.recv(1) == b""
        except ConnectionResetError:
            return True

    async def body(host: EngineHost) -> None:
        before = threading.active_count()
        server = await MetricsServer.start(ServingMetrics(host).registry, port=0)
        with ExitStack() as stack:
            idle = [
                stack.enter_context(
                    socket.create_connection(("127.0.0.1", server.port))
                )
                for _ in range(metrics_server.MAX_SCRAPES + 9)
            ]
            for connection in idle[metrics_server.MAX_SCRAPES :]:
                assert await asyncio.to_thread(is_closed, connection)
            extra = threading.active_count() - before
            # Its own, and the one that this test reads in.
            assert extra <= metrics_server.MAX_SCRAPES + 2
            for connection in idle:
                assert await asyncio.to_thread(is_closed, connection)
        assert "vllm:num_requests_running" in await asyncio.to_thread(
            scrape, server.port
        )
        await server.close()

    with_host(make_engine(), body)
