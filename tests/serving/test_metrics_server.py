"""The metrics page over HTTP: while its server is there, and no longer."""

import asyncio
import urllib.request

import pytest

from hybrid import SamplingParams
from hybrid.scheduler import ConfigError
from hybrid.serving.engine_host import EngineHost
from hybrid.serving.metrics_server import MetricsServer
from hybrid.serving.serving_metrics import ServingMetrics
from tests.hybrid.null_stand import make_engine
from tests.serving.host_stand import ask, with_host
from tests.serving.metrics_page import Page

SHORT = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def test_the_page_is_served_until_the_server_closes() -> None:
    """On a free port, in Prometheus' own format; then the port is free again."""

    def scrape(port: int) -> str:
        url = f"http://127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            return answer.read().decode()

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
