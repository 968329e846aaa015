"""Runs the engine's service on a loopback port for the length of one test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

from hybrid import AsyncHybridEngine, EngineConfig, HybridEngine
from hybrid.engine_builder import LoadedEngine, load_engine
from hybrid.serving.admission import AdmissionLimits
from hybrid.serving.engine_host import EngineHost
from hybrid.serving.served_model import ServedModel
from hybrid.serving.service_table import ServiceTable
from hybrid.serving.vllm_service import VllmEngineService
from tests.hybrid.cli_stand import write_tiny_model

T = TypeVar("T")

TIMEOUT_S = 20
"""A hang is a failure; nothing here takes seconds."""


@dataclass(frozen=True)
class Served:
    """A running service, and a client of it."""

    host: EngineHost
    stub: Any
    """A ``VllmEngineStub``."""
    channel: Any
    address: str


def model_of(engine: HybridEngine, **changes: Any) -> ServedModel:
    """What is served where an engine was put together by hand."""
    values = {
        "name": "tiny",
        "path": None,
        "architecture": "NullModel",
        "vocab_size": engine.input_processor.vocab_size,
        "max_model_len": 128,
        "executor": "null",
        "device": "cpu",
        "dtype": "float32",
        "block_size": 4,
        "num_blocks": engine.stats().kv_total_blocks,
        "max_num_seqs": 8,
        "tokenizer": engine.tokenizer,
    }
    return ServedModel(**(values | changes))


def load_tiny(folder: Path, **options: Any) -> LoadedEngine:
    """An engine with a byte-level tokenizer over the null executor."""
    defaults = {"executor": "null", "num_kv_blocks": 64, "block_size": 16}
    path = str(write_tiny_model(folder))
    return load_engine(
        EngineConfig(model=path, **(defaults | options)), log_requests=False
    )


def server_and_table(**options: Any) -> tuple[Any, ServiceTable]:
    """A server that is not started, and where its services go."""
    table = ServiceTable()
    table.is_open = True
    return grpc.aio.server(handlers=[table], **options), table


@asynccontextmanager
async def serving(
    engine: HybridEngine,
    model: ServedModel | None = None,
    limits: AdmissionLimits | None = None,
    profile_dir: Path | None = None,
    stream_interval_s: float | None = 0.0,
) -> AsyncIterator[Served]:
    """Serve an engine on a free port; closes everything at the end."""
    server, table = server_and_table()
    port = server.add_insecure_port("127.0.0.1:0")
    async with AsyncHybridEngine(
        engine, stream_interval_s=stream_interval_s
    ) as asynchronous:
        host = EngineHost(asynchronous, model or model_of(engine), limits)
        service = VllmEngineService(host, profile_dir)
        pb_grpc.add_VllmEngineServicer_to_server(service, table)
        await server.start()
        address = f"127.0.0.1:{port}"
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                stub = pb_grpc.VllmEngineStub(channel)
                yield Served(host, stub, channel, address)
        finally:
            await server.stop(None)


def serve(
    engine: HybridEngine,
    body: Callable[[Served], Awaitable[T]],
    model: ServedModel | None = None,
    limits: AdmissionLimits | None = None,
    profile_dir: Path | None = None,
    stream_interval_s: float | None = 0.0,
) -> T:
    """Run ``body`` against a service; bounded."""

    async def main() -> T:
        async with serving(
            engine, model, limits, profile_dir, stream_interval_s
        ) as served:
            async with asyncio.timeout(TIMEOUT_S):
                return await body(served)

    return asyncio.run(main())


def request(
    prompt: Sequence[int] | str,
    *,
    request_id: str = "r",
    stream: bool = False,
    **sampling: Any,
) -> Any:
    """A ``GenerateRequest``; greedy unless told otherwise."""
    values = {"temperature": 0.0, "max_tokens": 8} | sampling
    given = {name: value for name, value in values.items() if value is not None}
    message = pb.GenerateRequest(
        request_id=request_id,
        stream=stream,
        sampling_params=pb.SamplingParams(**given),
    )
    if isinstance(prompt, str):
        message.text = prompt
    else:
        message.tokenized.input_ids.extend(prompt)
        message.tokenized.SetInParent()
    return message


async def collect(call: Any) -> list[Any]:
    """Every message of an answer, out of its envelope."""
    return [getattr(m, m.WhichOneof("response")) async for m in call]


async def generate(served: Served, message: Any) -> list[Any]:
    """Send one request and read its answer to the end."""
    return await collect(served.stub.Generate(message))


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    """The status with which a call fails; fails the test if it does not."""
    try:
        answer = await collect(call) if hasattr(call, "__aiter__") else await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError(f"the call succeeded: {answer}")


def num_tokens_told(served: Served, request_id: str) -> int:
    """Tokens of a request that the serving loop knows of."""
    mailbox = served.host.engine._mailboxes.get(request_id)
    if mailbox is None or mailbox._newest is None:
        return 0
    return len(mailbox._newest.outputs[0].token_ids)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another task or thread brings about; the test bounds it."""
    while not condition():  # noqa: ASYNC110 - threads do not set events of this loop
        await asyncio.sleep(0.001)
