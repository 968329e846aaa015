"""The gateway as a part of the server: what it is told, whom it lets in, its end."""

import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import openai
import psutil
import pytest

from hybrid.serving.bearer_token import TOKEN_VARIABLE
from tests.serving.certificates import channel_credentials, make_authority, sign
from tests.serving.serve_process import (
    NOT_SERVING,
    addresses,
    connected,
    started,
    until,
)

TOKENS = ("first-secret", "second-secret")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a server whose executor answers by a text."""
    (tmp_path / "answer").write_text("Hello, world", "utf-8")
    return tmp_path


def say_hi(client: openai.OpenAI) -> str | None:
    """Ask, and return the answer."""
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}]
    )
    return answer.choices[0].message.content


def test_http_speaks_tls_and_wants_a_token_as_grpc_does(folder: Path) -> None:
    """One certificate and the same tokens on both ports; no token on a command line."""
    authority = make_authority(folder, "authority")
    identity = sign(folder, "localhost", authority)
    trust = ssl.create_default_context(cafile=str(authority.cert))
    options = ["--port", "0", "--http-port", "0", "--served-model-name", "tiny"]
    options += ["--tls-cert", str(identity.cert), "--tls-key", str(identity.key)]
    environment = {TOKEN_VARIABLE: " ".join(TOKENS)}
    with started(folder, *options, environment=environment) as server:
        ports = addresses(server)
        assert ports["http"].startswith("https://")
        for token in TOKENS:
            with http_client(ports["http"], token, trust) as client:
                assert say_hi(client) == "Hello, world"
        with http_client(ports["http"], "wrong", trust) as client:
            with pytest.raises(openai.AuthenticationError):
                say_hi(client)
            # Nor may a stranger lead the gateway to other engines.
            assert status_of_get(ports["http"], "/workers", trust) == 401
        with connected(ports["grpc"], channel_credentials(authority)) as client:
            assert client.health() != NOT_SERVING
        (gateway,) = server.children()
        told = [*gateway.cmdline(), *psutil.Process(server.process.pid).cmdline()]
        assert not any(token in text for token in TOKENS for text in told)
        assert not any(token in server.log for token in TOKENS)


def http_client(url: str, token: str, trust: ssl.SSLContext) -> openai.OpenAI:
    """A client of the HTTP API over TLS."""
    return openai.OpenAI(
        base_url=f"{url}/v1",
        api_key=token,
        max_retries=0,
        http_client=openai.DefaultHttpxClient(verify=trust),
    )


def status_of_get(url: str, path: str, trust: ssl.SSLContext | None = None) -> int:
    """The status of a page."""
    address = url.rpartition("/")[2]
    connection = HTTPConnection(address, timeout=60)
    if trust is not None:
        connection = HTTPSConnection(address, timeout=60, context=trust)
    with closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


def test_http_requests_end_in_order(folder: Path) -> None:
    """After SIGTERM one that runs is answered, a new one gets 503, nobody is left."""
    options = ("--port", "0", "--http-port", "0", "--served-model-name", "tiny")
    with started(folder, *options) as server, ThreadPoolExecutor(1) as threads:
        ports = addresses(server)
        (gateway,) = server.children()
        client = openai.OpenAI(
            base_url=f"{ports['http']}/v1", api_key="none", max_retries=0
        )
        with client, connected(ports["grpc"]) as engine:
            server.set_gate("hold")
            running = threads.submit(say_hi, client)
            until(lambda: engine.num_active() == 1)
            server.signal()
            until(lambda: engine.health() == NOT_SERVING)
            until(lambda: status_of_get(ports["http"], "/readiness") == 503)
            with pytest.raises(openai.InternalServerError) as refused:
                say_hi(client)
            assert refused.value.status_code == 503
            server.open_gate("hold")
            assert running.result() == "Hello, world"
        assert server.wait() == 0
        assert not gateway.is_running()
        assert "gateway.killed" not in server.log
        assert "error" not in [line[:5] for line in server.log.splitlines()]


def test_a_stream_that_is_aborted_says_so(folder: Path) -> None:
    """Past the shutdown's timeout a stream ends, by a reason that no model gives."""
    (folder / "answer").write_text("on and " * 1000, "utf-8")
    options = ["--port", "0", "--http-port", "0", "--served-model-name", "tiny"]
    options += ["-x", "max_model_len=10000", "--shutdown-timeout", "0"]
    with started(folder, *options) as server:
        url = f"{addresses(server)['http']}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            stream = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            next(stream)
            server.signal()
            *_, last = stream
        assert last.choices[0].finish_reason == "abort"
        assert server.wait() == 0


def test_what_the_gateway_says_is_in_our_log(folder: Path) -> None:
    """Its lines come as events of ours, and its banner does not come at all."""
    with started(folder, "--port", "0", "--http-port", "0") as server:
        ports = addresses(server)
        assert status_of_get(ports["http"], "/v1/no-such-page") == 404
        until(lambda: '"event": "gateway.logged"' in server.log)
        assert all(line.startswith("{") for line in server.log.splitlines())
