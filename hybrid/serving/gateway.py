"""The OpenAI-compatible HTTP API: the gateway ``smg`` as a child of this process.

It reaches the engine by a loopback port of its own. It is not started again: one that
dies ends the server, whose supervisor starts both.
"""

import asyncio
import json
import os
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib.util import find_spec
from math import ceil
from typing import Final, Self

import structlog

from hybrid.scheduler.errors import ConfigError, HybridError

from .listeners import Listener, find_port, join_address
from .serve_config import ServeConfig

log = structlog.get_logger()

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0
"""For a gateway to end by itself, once no request is left."""
_POLL_S: Final = 0.1
_MAX_LINE_BYTES: Final = 1 << 20
_MAX_WORDS: Final = 300
"""Characters of its last line in an error."""


class GatewayFailed(HybridError):
    """The gateway ended, or never became ready; its own lines are in the log."""


class Gateway:
    """One running ``smg``."""

    def __init__(
        self, process: asyncio.subprocess.Process, config: ServeConfig
    ) -> None:
        assert config.http_port is not None
        self._process: Final = process
        self._config: Final = config
        self._lines: Final = asyncio.create_task(self._log_lines())
        self._end: asyncio.Task[None] | None = None
        self._last_words = ""

    @classmethod
    async def start(
        cls,
        config: ServeConfig,
        worker: Listener,
        tokens: Sequence[str],
        on_end: Callable[[str], None],
    ) -> Self:
        """Start it and wait until it serves.

        Args:
            config: with an ``http_port`` that is not 0.
            worker: where it finds the engine.
            tokens: what its own clients must bring one of; empty: nothing.
            on_end: told why, if it ends by itself afterwards.

        Raises:
            GatewayFailed: it ended, or was not ready within ``START_TIMEOUT_S``.
        """
        arguments = list(_arguments(config, worker, tokens))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "hybrid.serving.gateway_process",
            str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=_MAX_LINE_BYTES,
            # Ctrl-C at our terminal is ours: the gateway ends when we say so.
            start_new_session=True,
        )
        gateway = cls(process, config)
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(arguments).encode())
            process.stdin.close()
            await gateway._wait_until_ready()
        except BaseException:
            await gateway.stop(timeout_s=0)
            raise
        gateway._end = asyncio.create_task(gateway._tell_of_end(on_end))
        return gateway

    @property
    def url(self) -> str:
        """Where its clients find it."""
        scheme = "http" if self._config.tls_cert is None else "https"
        return f"{scheme}://{join_address(self._config.http_host, self._port)}"

    def begin_stop(self) -> None:
        """Have it refuse requests and end once those that it has are answered."""
        if self._end is not None:
            self._end.cancel()
        with suppress(ProcessLookupError):
            self._process.terminate()

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End it: by itself, or after a while by force."""
        self.begin_stop()
        try:
            await asyncio.wait_for(self._process.wait(), timeout_s)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
                log.warning("gateway.killed", timeout_s=timeout_s)
            await self._process.wait()
        await self._lines

    @property
    def _port(self) -> int:
        assert self._config.http_port is not None
        return self._config.http_port

    async def _tell_of_end(self, on_end: Callable[[str], None]) -> None:
        on_end(f"the gateway ended with code {await self._process.wait()}")

    async def _wait_until_ready(self) -> None:
        deadline_s = asyncio.get_running_loop().time() + START_TIMEOUT_S
        while not await asyncio.to_thread(self._is_ready):
            code = self._process.returncode
            if code is not None:
                await self._lines
                raise GatewayFailed(
                    f"the gateway ended with code {code} before it served "
                    f"(http_port {self._port}): {self._last_words}"
                )
            if asyncio.get_running_loop().time() > deadline_s:
                raise GatewayFailed(
                    f"the gateway was not ready within {START_TIMEOUT_S:g} s"
                )
            await asyncio.sleep(_POLL_S)

    def _is_ready(self) -> bool:
        """Ask the gateway; run in a thread."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(  # noqa: S104 - compared, not bound
            self._config.http_host, self._config.http_host
        )
        connection = HTTPConnection(host, self._port, timeout=2)
        if self._config.tls_cert is not None:
            # Whom its certificate names is its clients' business.
            unverified = ssl.create_default_context()
            unverified.check_hostname = False
            unverified.verify_mode = ssl.CERT_NONE
            connection = HTTPSConnection(
                host, self._port, timeout=2, context=unverified
            )
        with closing(connection):
            try:
                connection.request("GET", "/readiness")
                return connection.getresponse().status == 200
            except (OSError, HTTPException):
                return False

    async def _log_lines(self) -> None:
        """Pass its log on, line by line, until it closes it."""
        stream = self._process.stdout
        assert stream is not None
        while not stream.at_eof():
            try:
                line = (await stream.readline()).decode("utf-8", "replace").strip()
            except ValueError:
                continue  # the beginning of a line that is longer than the limit
            if line:
                self._last_words = line[:_MAX_WORDS]
                _log_line(line)


def check_gateway() -> None:
    """Refuse to start without the gateway's package.

    Raises:
        ConfigError: it is not installed.
    """
    if find_spec("smg") is None:
        raise ConfigError(
            "http_port needs the gateway, which is not installed: "
            "pip install 'hybrid-llm-engine[gateway]'"
        )


def _arguments(
    config: ServeConfig, worker: Listener, tokens: Sequence[str]
) -> Iterator[str]:
    """Put its command line together; the user's own options come last."""
    yield from ("--worker-urls", f"grpc://{worker.address}")
    yield from ("--host", config.http_host, "--port", str(config.http_port))
    # By default it would tell everybody how it fares.
    yield from ("--prometheus-host", "127.0.0.1")
    yield from ("--prometheus-port", str(find_port("prometheus", "127.0.0.1", 0)))
    yield from ("--log-level", "warn", "--log-json")
    grace_s = ceil(config.shutdown_timeout_s + STOP_TIMEOUT_S)
    yield from ("--shutdown-grace-period-secs", str(grace_s))
    if config.tls_cert is not None:
        yield from ("--tls-cert-path", str(config.tls_cert))
        yield from ("--tls-key-path", str(config.tls_key))
    for index, token in enumerate(tokens):
        yield from ("--tenant-api-key", f"token-{index}:{token}")
    for name, value in config.gateway_options.items():
        # In one word: a value that looks like an option is none.
        yield f"--{name}" if value is None else f"--{name}={value}"


def _log_line(line: str) -> None:
    """Log what it says; its banner is no JSON and is left out."""
    try:
        record = json.loads(line)
        message, level = record["message"], record["level"]
    except (ValueError, KeyError, TypeError):
        log.debug("gateway.wrote", line=line)
        return
    write = log.error if level == "ERROR" else log.warning
    write("gateway.logged", message=message, target=record.get("target"))
