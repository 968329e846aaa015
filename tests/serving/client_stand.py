"""Servers for the tests of the client, each in threads of its own."""

import asyncio
import hashlib
import io
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc
from smg_grpc_proto.generated import common_pb2

from hybrid import HybridEngine, SamplingParams
from hybrid.client import AsyncHybridClient, ClientOptions, HybridClient, RetryPolicy
from hybrid.serving.admission import AdmissionLimits
from hybrid.serving.engine_host import EngineHost
from hybrid.serving.served_model import ServedModel
from tests.hybrid.cli_stand import write_tiny_model
from tests.serving.service_stand import TIMEOUT_S, serving

QUICK = ClientOptions(retry=RetryPolicy(first_wait_s=0.001))
"""Asks again at once, and nearly."""
PROMPT = [1, 2, 3]
IDS = SamplingParams(detokenize=False)
"""For servers without a tokenizer."""


@dataclass(frozen=True)
class Service:
    """The engine's service, running."""

    address: str
    host: EngineHost


@contextmanager
def running_service(
    engine: HybridEngine,
    model: ServedModel | None = None,
    limits: AdmissionLimits | None = None,
) -> Iterator[Service]:
    """Serve an engine from a thread."""
    started = threading.Event()
    services: list[Service] = []
    ends: list[Callable[[], object]] = []

    async def main() -> None:
        end = asyncio.Event()
        loop = asyncio.get_running_loop()
        ends.append(lambda: loop.call_soon_threadsafe(end.set))
        async with serving(engine, model, limits) as served:
            services.append(Service(served.address, served.host))
            started.set()
            await end.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        assert started.wait(TIMEOUT_S), "the server did not start"
        yield services[0]
    finally:
        ends[0]()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive(), "the server did not end"


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread brings about."""
    end_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end_s, "it never came to be"
        time.sleep(0.001)


Act = Callable[[Any, grpc.ServicerContext], Iterator[Any]]
"""One Generate: the request and its context, to the messages of the answer."""


class ScriptedService(pb_grpc.VllmEngineServicer):  # type: ignore[misc] # untyped
    """Acts a scene per Generate, the last one again and again; has no engine."""

    def __init__(self, *acts: Act, archive: Sequence[Any] | None = None) -> None:
        self._acts = list(acts)
        self._archive = archive
        self.requests: list[Any] = []
        self.metadata: list[dict[str, Any]] = []
        self.num_tokenizer_calls = 0
        self.num_health_calls = 0

    def Generate(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802 - protocol's
        """Act the next scene."""
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        act = self._acts.pop(0) if len(self._acts) > 1 else self._acts[0]
        yield from act(request, context)

    def GetModelInfo(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - as above
        """Say a name."""
        return pb.GetModelInfoResponse(served_model_name="scripted")

    def HealthCheck(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - as above
        """Be away."""
        self.num_health_calls += 1
        context.abort(grpc.StatusCode.UNAVAILABLE, "away")

    def GetTokenizer(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: ARG002, N802 - as above
        """Send the archive, or refuse where there is none."""
        self.num_tokenizer_calls += 1
        if self._archive is None:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "has none")
        yield from self._archive or ()


@contextmanager
def running_script(service: ScriptedService) -> Iterator[str]:
    """Serve a script; gives its address."""
    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool)
        port = server.add_insecure_port("127.0.0.1:0")
        pb_grpc.add_VllmEngineServicer_to_server(service, server)
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait(TIMEOUT_S)


def answers(*token_ids: int, reason: str = "stop") -> Act:
    """Answer as the protocol has it, streaming or not."""

    def act(request: Any, context: Any) -> Iterator[Any]:  # noqa: ARG001 - an Act
        if request.stream:
            for token_id in token_ids:
                yield chunk(token_id)
        yield complete(*token_ids, reason=reason)

    return act


def refuses(code: grpc.StatusCode, *trailers: tuple[str, str], after: int = 0) -> Act:
    """Fail with a status, after some tokens."""

    def act(request: Any, context: Any) -> Iterator[Any]:  # noqa: ARG001 - an Act
        for token_id in range(after):
            yield chunk(token_id)
        context.set_trailing_metadata(trailers)
        context.abort(code, "scripted")

    return act


def chunk(*token_ids: int, index: int = 0) -> Any:
    """A message of a stream."""
    part = pb.GenerateStreamChunk(
        token_ids=token_ids, completion_tokens=len(token_ids), index=index
    )
    return pb.GenerateResponse(chunk=part)


def complete(*token_ids: int, reason: str = "stop", index: int = 0) -> Any:
    """A sample's last message."""
    part = pb.GenerateComplete(output_ids=token_ids, finish_reason=reason, index=index)
    return pb.GenerateResponse(complete=part)


def pack(files: Mapping[str | zipfile.ZipInfo, bytes]) -> bytes:
    """Zip files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def sent(data: bytes) -> list[Any]:
    """An archive as a server sends it."""
    return pieces(data, hashlib.sha256(data).hexdigest())


def model_files(folder: Path) -> dict[str, bytes]:
    """A model's tokenizer files."""
    path = write_tiny_model(folder)
    return {file.name: file.read_bytes() for file in path.iterdir()}


def pieces(data: bytes, sha256: str) -> list[Any]:
    """An archive in two pieces."""
    half = len(data) // 2
    return [
        common_pb2.GetTokenizerChunk(data=data[:half]),
        common_pb2.GetTokenizerChunk(data=data[half:], sha256=sha256),
    ]


def ask_sync(address: str, options: ClientOptions, *, stream: bool) -> tuple[int, ...]:
    """The answer's ids, by the client for threads."""
    with HybridClient(address, options) as client:
        ask: Callable[..., Any] = client.stream if stream else client.generate
        parts = list(ask(PROMPT, IDS))
    return tuple(i for part in parts for i in part.token_ids)


def ask_async(address: str, options: ClientOptions, *, stream: bool) -> tuple[int, ...]:
    """The answer's ids, by the client for event loops."""

    async def main() -> tuple[int, ...]:
        async with (
            asyncio.timeout(TIMEOUT_S),
            AsyncHybridClient(address, options) as client,
        ):
            if stream:
                parts = [part async for part in client.stream(PROMPT, IDS)]
            else:
                parts = list(await client.generate(PROMPT, IDS))
        return tuple(i for part in parts for i in part.token_ids)

    return asyncio.run(main(), debug=True)
