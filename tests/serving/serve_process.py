"""``hybrid serve`` as a process of its own, and those who talk to it."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

from tests.hybrid.cli_stand import write_tiny_model
from tests.source_tree import ROOT

PATIENCE_S = 60.0
"""For what takes far less; a hang is a failure."""
COMMAND = (sys.executable, "-c", "from hybrid.cli import main; main()", "serve")
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process brings about."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it never came to be"
        time.sleep(0.01)


@dataclass(frozen=True)
class ServeProcess:
    """A running server."""

    process: "subprocess.Popen[str]"
    folder: Path
    """With the gates of its executor, and its log."""

    @property
    def log(self) -> str:
        """What it wrote to stderr so far."""
        return (self.folder / "stderr").read_text("utf-8")

    def read_line(self) -> str:
        """Its next line of stdout; empty if it ends instead."""
        assert self.process.stdout is not None
        timer = threading.Timer(PATIENCE_S, self.process.kill)
        timer.start()
        try:
            return self.process.stdout.readline()
        finally:
            timer.cancel()

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE_S)

    def set_gate(self, name: str) -> None:
        """Put a gate in its executor's way."""
        (self.folder / name).touch()

    def open_gate(self, name: str) -> None:
        """Let its executor go on."""
        (self.folder / name).unlink()

    def children(self) -> list[psutil.Process]:
        """The processes that it started."""
        found: list[psutil.Process] = psutil.Process(self.process.pid).children()
        return found


@contextmanager
def started(
    folder: Path,
    *arguments: str,
    engine: Sequence[str] | None = None,
    environment: dict[str, str] | None = None,
) -> Iterator[ServeProcess]:
    """Start a server; whatever happens, it is gone after.

    Args:
        folder: for what it writes, and for the gates of its executor.
        arguments: of the server.
        engine: of the engine; ``None``: the gated executor, with a tokenizer where
            there is a gateway, which needs one.
        environment: beside the one of this process.
    """
    site = _install_plugin(folder / "site")
    paths = os.pathsep.join((str(site), str(ROOT)))
    options = list(engine or ("--executor", "gated", "-x", f"folder={folder}"))
    if engine is None and "--http-port" in arguments:
        options += ["-m", str(write_tiny_model(folder / "tiny"))]
    with (folder / "stderr").open("w") as log:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter
            [*COMMAND, *options, *arguments],
            cwd=ROOT,
            env={**os.environ, **(environment or {}), "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        yield ServeProcess(process, folder)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()


def addresses(server: ServeProcess) -> dict[str, str]:
    """Wait until it is ready; where it is, by protocol."""
    line = server.read_line()
    assert line.startswith("ready "), (line, server.log)
    return dict(re.findall(r"(\w+)=(\S+)", line))


@contextmanager
def connected(address: str, credentials: Any = None) -> Iterator["Client"]:
    """Connect to a server."""
    make = grpc.insecure_channel
    arguments = [address]
    if credentials is not None:
        make, arguments = grpc.secure_channel, [address, credentials]
    with make(*arguments) as channel:
        yield Client(channel)


class Client:
    """Speaks to the services of one address."""

    def __init__(self, channel: Any) -> None:
        self.engine = pb_grpc.VllmEngineStub(channel)
        self._health = health_pb2_grpc.HealthStub(channel)

    def health(self, service: str = "") -> int:
        """What ``grpc.health.v1`` says; waits for the port to open."""
        status: int = self._health.Check(
            health_pb2.HealthCheckRequest(service=service),
            wait_for_ready=True,
            timeout=PATIENCE_S,
        ).status
        return status

    def num_active(self) -> int:
        """Requests that the server has taken and not ended."""
        info = self.engine.GetServerInfo(pb.GetServerInfoRequest(), timeout=PATIENCE_S)
        number: int = info.active_requests
        return number

    def stream(self, request: Any) -> Iterator[Any]:
        """Chunks and completes of one request."""
        for message in self.engine.Generate(request, timeout=PATIENCE_S):
            yield getattr(message, message.WhichOneof("response"))


def _install_plugin(site: Path) -> Path:
    metadata = site / "gated-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: gated\nVersion: 1\n", "utf-8"
    )
    (metadata / "entry_points.txt").write_text(
        "[hybrid.plugins]\ngated = tests.serving.gated_plugin\n", "utf-8"
    )
    return site
