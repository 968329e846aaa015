"""A gateway that misbehaves, in place of the real one: the server stays in charge."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from textwrap import dedent

import psutil
import pytest
import structlog
from structlog.testing import capture_logs

from hybrid.serving import gateway as gateway_module
from hybrid.serving.gateway import Gateway, GatewayFailed
from hybrid.serving.listeners import Listener, find_port
from hybrid.serving.serve_config import ServeConfig
from tests.source_tree import ROOT

READY = """
    import http.server, sys
    class Ready(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
        def log_message(self, *_):
            pass
    def serve(arguments):
        port = int(arguments[arguments.index("--port") + 1])
        http.server.HTTPServer(("127.0.0.1", port), Ready).serve_forever()
"""
"""Of a gateway that is ready at once."""
Start = Callable[[Callable[[str], None]], Awaitable[Gateway]]


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """Log everything, however chosen by who ran before in this process."""
    before, was_configured = structlog.get_config(), structlog.is_configured()
    structlog.reset_defaults()
    yield
    if was_configured:
        structlog.configure(**before)


def with_gateway(
    source: str,
    body: Callable[[Start], Awaitable[None]],
    folder: Path,
    patch: pytest.MonkeyPatch,
) -> None:
    """Run ``body`` where ``smg`` is a package with this ``main``; nothing is left."""
    (folder / "smg").mkdir()
    (folder / "smg" / "__init__.py").touch()
    (folder / "smg" / "cli.py").write_text(dedent(READY) + dedent(source), "utf-8")
    patch.setenv("PYTHONPATH", os.pathsep.join((str(folder), str(ROOT))))
    config = ServeConfig(http_port=find_port("http", "127.0.0.1", 0))

    def start(on_end: Callable[[str], None]) -> Awaitable[Gateway]:
        worker = Listener(None, "127.0.0.1", 1)
        return Gateway.start(config, worker, ["secret"], on_end)

    async def main() -> None:
        async with asyncio.timeout(60):
            await body(start)

    # Others' tests may have left one that lives as long as this process.
    before = set(psutil.Process().children())
    asyncio.run(main())
    assert set(psutil.Process().children()) <= before, "the gateway is left"


def unexpected(reason: str) -> None:
    """Fail a test: the gateway did not end by itself."""
    raise AssertionError(reason)


def test_one_that_never_serves_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start fails after a while, and the process is gone."""
    monkeypatch.setattr(gateway_module, "START_TIMEOUT_S", 0.5)

    async def body(start: Start) -> None:
        with pytest.raises(GatewayFailed, match=r"not ready within 0\.5 s"):
            await start(unexpected)

    source = """
        def main(arguments):
            import time
            time.sleep(600)
    """
    with_gateway(source, body, tmp_path, monkeypatch)


def test_one_that_ends_at_the_start_leaves_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the error, for they are all that says why."""

    async def body(start: Start) -> None:
        with pytest.raises(GatewayFailed, match=r"with code 3 .*: no luck today"):
            await start(unexpected)

    source = """
        def main(arguments):
            print("a banner")
            print("no luck today", flush=True)
            sys.exit(3)
    """
    with_gateway(source, body, tmp_path, monkeypatch)


def test_one_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that is deaf to SIGTERM does not keep the server."""

    async def body(start: Start) -> None:
        gateway = await start(unexpected)
        with capture_logs() as events:
            await gateway.stop(timeout_s=0.2)
        assert [event["event"] for event in events] == ["gateway.killed"]

    source = """
        def main(arguments):
            import signal
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            serve(arguments)
    """
    with_gateway(source, body, tmp_path, monkeypatch)


def test_one_that_ends_later_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever started it hears so, once."""

    async def body(start: Start) -> None:
        reasons: asyncio.Queue[str] = asyncio.Queue()
        gateway = await start(reasons.put_nowait)
        assert await reasons.get() == "the gateway ended with code 5"
        await gateway.stop()
        assert reasons.empty()

    source = """
        def main(arguments):
            import os, threading
            threading.Timer(1.0, os._exit, [5]).start()
            serve(arguments)
    """
    with_gateway(source, body, tmp_path, monkeypatch)


def test_what_it_writes_is_logged_whatever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON lines by their level; text for debugging; an endless line stops nothing."""

    async def body(start: Start) -> None:
        with capture_logs() as events:
            gateway = await start(unexpected)
            await gateway.stop()
        told = [(e["log_level"], e.get("message", e.get("line"))) for e in events]
        assert told[:4] == [
            ("debug", "plain"),
            ("error", "bad"),
            ("warning", "so so"),
            ("debug", "[1]"),
        ]
        assert told[-1] == ("debug", "the end")
        assert sum(len(text) for _, text in told) < 3_000_000

    source = r"""
        def main(arguments):
            print("plain")
            print('{"level": "ERROR", "message": "bad", "target": "a::b"}')
            print('{"level": "WARN", "message": "so so"}')
            print("[1]")
            print("x" * 3_000_000)
            print("the end", flush=True)
            serve(arguments)
    """
    with_gateway(source, body, tmp_path, monkeypatch)
