"""Clients that take no answer: they do not read, or their connection is lost."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

from hybrid import RequestOutput
from hybrid.testing import check_whole
from tests.hybrid.null_stand import make_engine
from tests.serving.kserve_stand import KServed, serve_kserve, streamed
from tests.serving.service_stand import (
    Served,
    generate,
    load_tiny,
    model_of,
    request,
    serve,
    until,
)

NUM_MUTE = 6
NARROW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536)]
"""A connection that holds little of what is not read."""
CONTEXT = 2000


def big_request(number: int) -> Any:
    """A request whose answer has some 400 kB of log-probabilities."""
    return request(
        [1] * 1500,
        request_id=f"m{number}",
        stream=True,
        prompt_logprobs=20,
        max_tokens=60,
    )


def serve_mute(body: Callable[[Served], Any]) -> None:
    """Run ``body`` against a service of a context that is long enough."""
    engine = make_engine(
        num_blocks=3000, max_model_len=CONTEXT, max_num_batched_tokens=CONTEXT
    )
    serve(engine, body, model_of(engine, max_model_len=CONTEXT))
    check_whole(engine)


async def all_answered(served: Served) -> None:
    """Wait until the engine has ended what the mute clients asked for."""
    engine = served.host.engine
    ended = {"length": NUM_MUTE}
    await until(lambda: engine.stats().requests_finished_total == ended)


def num_outputs() -> int:
    """Outputs of the engine that somebody holds."""
    gc.collect()
    # No isinstance: some objects of other libraries answer it with a warning.
    return sum(type(thing) is RequestOutput for thing in gc.get_objects())


def test_clients_that_do_not_read_cost_neither_memory_nor_time() -> None:
    """Of what they miss only the newest output is kept; others are answered."""
    held_by_others = num_outputs()

    async def body(served: Served) -> None:
        async with grpc.aio.insecure_channel(served.address, NARROW) as channel:
            stub = pb_grpc.VllmEngineStub(channel)
            calls = [stub.Generate(big_request(i)) for i in range(NUM_MUTE)]
            await all_answered(served)
            # The newest, one that is being written, and one on its way.
            assert num_outputs() - held_by_others <= 3 * NUM_MUTE
            asked = [request([i], request_id=str(i)) for i in range(20)]
            others = await asyncio.gather(*(generate(served, a) for a in asked))
            assert all(len(answer) == 1 for answer in others)
            assert served.host.num_requests == NUM_MUTE
            for call in calls:
                call.cancel()
            await until(lambda: served.host.num_requests == 0)

    serve_mute(body)


class Wire:
    """Carries bytes between clients and a server until it is cut."""

    def __init__(self, address: str) -> None:
        self._host, _, self._port = address.rpartition(":")
        self._ends: list[asyncio.StreamWriter] = []

    async def __call__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry one connection."""
        there = await asyncio.open_connection(self._host, int(self._port))
        self._ends += [writer, there[1]]
        await asyncio.gather(_pump(reader, there[1]), _pump(there[0], writer))

    def cut(self) -> None:
        """Lose every connection, as when a machine goes."""
        for end in self._ends:
            end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        return


@asynccontextmanager
async def wired(address: str) -> AsyncIterator[tuple[Wire, Any]]:
    """A wire to a server, and a channel over it."""
    wire = Wire(address)
    async with await asyncio.start_server(wire, "127.0.0.1", 0) as proxy:
        host, port = proxy.sockets[0].getsockname()
        async with grpc.aio.insecure_channel(f"{host}:{port}", NARROW) as channel:
            yield wire, channel


def test_a_connection_that_is_lost_within_a_write_is_no_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The requests are gone, and gRPC logs no traceback of the handler."""

    async def body(served: Served) -> None:
        async with wired(served.address) as (wire, channel):
            stub = pb_grpc.VllmEngineStub(channel)
            calls = [stub.Generate(big_request(i)) for i in range(NUM_MUTE)]
            await all_answered(served)
            assert served.host.num_requests == NUM_MUTE
            wire.cut()
            await until(lambda: served.host.num_requests == 0)
            for call in calls:
                call.cancel()
        assert len(await generate(served, request([1]))) == 1

    serve_mute(body)
    assert [record.message for record in caplog.records] == []


def test_so_it_is_for_kserves_streams(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every request of the stream is gone, and nothing is logged."""
    loaded = load_tiny(tmp_path, num_kv_blocks=1000, max_num_seqs=64)

    async def body(served: KServed) -> None:
        async with wired(served.address) as (wire, channel):
            call = replace(served, channel=channel).stream()
            for _ in range(2):
                await call.write(streamed(n=64, seed=1, max_tokens=200))
            ended = {"length": 2}
            engine = served.engine
            await until(lambda: engine.stats().requests_finished_total == ended)
            assert served.host.num_requests > 0
            wire.cut()
            await until(lambda: served.host.num_requests == 0)
            call.cancel()
        assert (await served.call("ServerReady")).ready

    serve_kserve(loaded, body)
    assert [record.message for record in caplog.records] == []
    check_whole(loaded.engine)
