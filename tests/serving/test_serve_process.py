"""The server as an operator has it: how it starts, ends, and fails."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import common_pb2

from tests.serving.serve_process import (
    NOT_SERVING,
    SERVING,
    Client,
    addresses,
    connected,
    started,
    until,
)
from tests.serving.service_stand import request

ENDLESS = ("-x", "max_model_len=30000")


def open_streams(client: Client, number: int, **sampling: Any) -> list[Iterator[Any]]:
    """Start requests and wait until the server has taken them."""
    streams = [
        client.engine.Generate(
            request([1, 2, 3], request_id=f"r{i}", stream=True, **sampling), timeout=60
        )
        for i in range(number)
    ]
    until(lambda: client.num_active() == number)
    return streams


def last_of(stream: Iterator[Any]) -> Any:
    """The complete with which a stream ends."""
    *_, last = stream
    return last.complete


def test_it_ends_in_order(tmp_path: Path) -> None:
    """After SIGTERM it takes nothing new, says so, and lets streams end."""
    with started(tmp_path, "--port", "0") as server:
        with connected(addresses(server)["grpc"]) as client:
            assert client.health("vllm.grpc.engine.VllmEngine") == SERVING
            server.set_gate("hold")
            streams = open_streams(client, 3, max_tokens=20, ignore_eos=True)
            server.signal()
            until(lambda: client.health() == NOT_SERVING)
            with pytest.raises(grpc.RpcError) as refused:
                list(client.stream(request([1], request_id="late")))
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            server.open_gate("hold")
            ends = [last_of(stream) for stream in streams]
        assert [end.finish_reason for end in ends] == ["length"] * 3
        assert server.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_does_not_end_in_time_is_aborted(
    tmp_path: Path, number: signal.Signals
) -> None:
    """A stream that goes on past the timeout ends by the finish reason abort."""
    options = ("--port", "0", "--shutdown-timeout", "0", *ENDLESS)
    with started(tmp_path, *options) as server:
        with connected(addresses(server)["grpc"]) as client:
            streams = open_streams(client, 3, max_tokens=29000, ignore_eos=True)
            for stream in streams:
                next(stream)
            server.signal(number)
            ends = [last_of(stream) for stream in streams]
        assert [end.finish_reason for end in ends] == ["abort"] * 3
        assert server.wait() == 0


def test_streams_without_an_end_do_not_keep_it(tmp_path: Path) -> None:
    """Gateways listen to KV events for as long as there is a server."""
    with started(tmp_path, "--port", "0") as server:
        with connected(addresses(server)["grpc"]) as client:
            events = client.engine.SubscribeKvEvents(
                common_pb2.SubscribeKvEventsRequest(), timeout=60
            )
            list(client.stream(request(range(1, 40), max_tokens=1)))
            assert next(events).events
            server.signal()
            with pytest.raises(grpc.RpcError) as ended:
                list(events)
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert server.wait() == 0


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """An operator who does not want to wait need not; the gateway goes, too."""
    with started(tmp_path, "--port", "0", "--http-port", "0") as server:
        with connected(addresses(server)["grpc"]) as client:
            (gateway,) = server.children()
            server.set_gate("hold")
            open_streams(client, 1)
            server.signal()
            until(lambda: client.health() == NOT_SERVING)
            server.signal()
            assert server.wait() == -signal.SIGTERM
        until(lambda: is_gone(gateway))


def test_an_executor_that_does_not_return_is_named(tmp_path: Path) -> None:
    """Its clients hear that their requests have ended, its operator why it fails."""
    with started(tmp_path, "--port", "0", "--shutdown-timeout", "0") as server:
        with connected(addresses(server)["grpc"]) as client:
            server.set_gate("hold")
            streams = open_streams(client, 2)
            server.signal()
            ends = [last_of(stream) for stream in streams]
            assert [end.finish_reason for end in ends] == ["abort"] * 2
        assert server.wait() == 1
        assert "did not stop within 10 s: the executor gated" in server.log


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended; one that nobody buried has, too."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_killed_server_leaves_no_gateway(tmp_path: Path) -> None:
    """SIGKILL, which nobody can handle, orphans nothing."""
    with started(tmp_path, "--port", "0", "--http-port", "0") as server:
        addresses(server)
        (gateway,) = server.children()
        # Ctrl-C at the server's terminal does not reach it past the server.
        assert os.getpgid(gateway.pid) == gateway.pid
        server.signal(signal.SIGKILL)
        server.wait()
        until(lambda: is_gone(gateway))


def test_a_dead_gateway_ends_the_server(tmp_path: Path) -> None:
    """A server without its HTTP port is none: its supervisor starts both again."""
    with started(tmp_path, "--port", "0", "--http-port", "0") as server:
        addresses(server)
        server.children()[0].kill()
        assert server.wait() == 1
        assert "error: the gateway ended with code -9" in server.log


def test_a_dead_executor_ends_requests_and_the_server(tmp_path: Path) -> None:
    """Clients are told by a status, whoever started the server by its exit code."""
    with started(tmp_path, "--port", "0") as server:
        with connected(addresses(server)["grpc"]) as client:
            server.set_gate("hold")
            streams = open_streams(client, 3)
            server.set_gate("die")
            server.open_gate("hold")
            for stream in streams:
                with pytest.raises(grpc.RpcError) as failed:
                    list(stream)
                assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        assert server.wait() == 1
        assert "told to die" in server.log
        assert server.log.splitlines()[-1].startswith("error: the engine")


def test_health_is_told_while_a_step_burns_the_processor(tmp_path: Path) -> None:
    """A long step keeps nobody from asking how the server is."""
    with (
        started(tmp_path, "--port", "0") as server,
        connected(addresses(server)["grpc"]) as client,
    ):
        server.set_gate("hold")
        (stream,) = open_streams(client, 1)
        for _ in range(20):
            assert client.health() == SERVING
            own = client.engine.HealthCheck(pb.HealthCheckRequest(), timeout=60)
            assert own.healthy
        assert client.num_active() == 1
        server.open_gate("hold")
        assert last_of(stream).finish_reason == "length"


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_while_it_loads_it_is_there_and_not_ready(tmp_path: Path) -> None:
    """The port is open, health says no, calls are refused; SIGTERM ends the loading."""
    port = free_port()
    (tmp_path / "hold-load").touch()
    with started(tmp_path, "--port", str(port)) as server:
        with connected(f"127.0.0.1:{port}") as client:
            until(lambda: client.health() == NOT_SERVING)
            with pytest.raises(grpc.RpcError) as refused:
                list(client.stream(request([1])))
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "starting" in refused.value.details()
            server.signal()
            assert server.wait() == 0
        assert server.read_line() == ""


def test_sigterm_before_it_is_ready_ends_it_in_order(tmp_path: Path) -> None:
    """The engine is there, the gateway is not: neither stays."""
    port = free_port()
    with started(tmp_path, "--port", str(port), "--http-port", "0") as server:
        with connected(f"127.0.0.1:{port}") as client:
            until(lambda: client.health() == SERVING)
        server.signal()
        children = server.children()
        assert server.wait() == 0
        until(lambda: all(map(is_gone, children)))


LATE_TO_FAIL = """
import pathlib, sys, time
def main(arguments):
    while not pathlib.Path({path!r}).exists():
        time.sleep(0.01)
    sys.exit(3)
"""
"""A gateway that never serves."""


def test_a_gateway_that_fails_late_ends_the_server_in_order(tmp_path: Path) -> None:
    """Clients of gRPC, long since let in, hear so and are answered."""
    package = tmp_path / "site" / "smg"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    source = LATE_TO_FAIL.format(path=str(tmp_path / "fail"))
    (package / "cli.py").write_text(source, "utf-8")
    port = free_port()
    with started(tmp_path, "--port", str(port), "--http-port", "0") as server:
        with connected(f"127.0.0.1:{port}") as client:
            until(lambda: client.health() == SERVING)
            server.set_gate("hold")
            (stream,) = open_streams(client, 1, max_tokens=3, ignore_eos=True)
            (tmp_path / "fail").touch()
            until(lambda: client.health() == NOT_SERVING)
            server.open_gate("hold")
            assert last_of(stream).finish_reason == "length"
        assert server.wait() == 1
        assert server.read_line() == ""
        last = server.log.splitlines()[-1]
        assert last.startswith("error: the gateway ended with code 3")


@pytest.mark.parametrize("option", ["port", "http-port"])
def test_a_port_in_use_is_told_before_the_model_loads(
    tmp_path: Path, option: str
) -> None:
    """Nobody waits for a model to hear that a port is taken; nor is it shared."""
    (tmp_path / "hold-load").touch()
    with socket.socket() as taken:
        # With it, gRPC would share the port and get every second call.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with started(tmp_path, f"--{option}", str(port)) as server:
            assert server.wait() == 1
            last = server.log.splitlines()[-1]
            assert last.startswith("error: ")
            assert f"127.0.0.1:{port}" in last


def test_a_gateway_that_does_not_start_is_told(tmp_path: Path) -> None:
    """The error is one line with the gateway's own last words."""
    options = ("--http-port", "0", "--gateway-option", "no-such=1")
    with started(tmp_path, "--port", "0", *options) as server:
        assert server.wait() == 1
        last = server.log.splitlines()[-1]
        assert last.startswith("error: the gateway ended with code")
        assert "--no-such" in last
