"""KServe's streams under load: many at once, each ended in its own way."""

import asyncio
from pathlib import Path
from random import Random
from unittest.mock import Mock

import grpc
import pytest

from hybrid.testing import check_whole
from tests.serving.kserve_stand import (
    KServed,
    infer_request,
    numbered,
    responses,
    serve_kserve,
    streamed,
)
from tests.serving.service_stand import load_tiny, until


async def use_stream(served: KServed, random: Random) -> None:
    """Send some requests, bad ones too, read some answers, then end it or leave."""
    call = served.stream()
    try:
        num_requests = random.randint(1, 6)
        for number in range(num_requests):
            ask = random.choice([streamed, infer_request])
            sampling = {"temperature": random.choice([0.0, 0.0, -1.0]), "n": 2}
            await call.write(numbered(ask(max_tokens=40, **sampling), number))
        for _ in range(random.randint(0, num_requests)):
            await call.read()
        if random.random() < 0.3:
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass
    finally:
        call.cancel()


def test_streams_that_end_anyhow_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request, no task, no block, and no line in the log of what is no failure."""
    failures = Mock()
    monkeypatch.setattr("hybrid.serving.rpc_errors.log", failures)
    loaded = load_tiny(tmp_path, max_num_seqs=8)

    async def body(served: KServed) -> None:
        assert (await served.call("ServerLive")).live
        num_tasks = len(asyncio.all_tasks())
        for round_number in range(5):
            seeds = range(30 * round_number, 30 * round_number + 30)
            await asyncio.gather(*(use_stream(served, Random(i)) for i in seeds))
        await until(lambda: len(asyncio.all_tasks()) <= num_tasks)
        assert served.host.num_requests == served.host.admission.num_tokens == 0
        assert await responses(served.stream(), streamed())

    serve_kserve(loaded, body)
    assert failures.mock_calls == []
    check_whole(loaded.engine)
