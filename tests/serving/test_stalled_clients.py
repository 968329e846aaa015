"""Clients that keep their window shut: their calls end, and hold no room meanwhile."""

from pathlib import Path

import pytest

from hybrid.serving import answer_writer
from hybrid.serving.admission import AdmissionLimits
from hybrid.testing import check_whole
from tests.hybrid.null_stand import make_engine
from tests.serving.kserve_stand import KServed, serve_kserve, streamed
from tests.serving.raw_http2 import ShutClient
from tests.serving.service_stand import (
    Served,
    generate,
    load_tiny,
    request,
    serve,
    until,
)

GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
LIMITS = AdmissionLimits(max_requests=2)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_there_holds_no_room(stream: bool) -> None:
    """However long its client takes to read it, others are let in."""
    engine = make_engine()

    async def body(served: Served) -> None:
        async with ShutClient.connected(served.address) as client:
            for number in range(2):
                message = request([5] * 9, request_id=str(number), stream=stream)
                client.call(2 * number + 1, GENERATE, message)
            ended = {"length": 2}
            await until(lambda: served.host.stats().requests_finished_total == ended)
            await until(lambda: served.host.admission.num_requests == 0)
            assert served.host.admission.num_tokens == 0
            assert served.host.num_requests == 2
            assert len(await generate(served, request([1]))) == 1
        await until(lambda: served.host.num_requests == 0)
        assert served.host.admission.num_requests == 0

    serve(engine, body, limits=LIMITS)
    check_whole(engine)


def test_a_call_that_cannot_be_written_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a status for whoever opens the window after all, and none for the gone."""
    monkeypatch.setattr(answer_writer, "WRITE_TIMEOUT_S", 0.2)
    engine = make_engine()

    async def body(served: Served) -> None:
        async with ShutClient.connected(served.address) as client:
            for stream in (1, 3):
                message = request([5] * 9, request_id=str(stream), stream=True)
                client.call(stream, GENERATE, message)
            await until(lambda: served.host.stats().requests_finished_total != {})
            await until(lambda: served.host.num_requests == 0)
            assert served.host.admission.num_requests == 0
            client.open(1)
            await until(lambda: 1 in client.ended)
            assert b"the client has taken no message for 0.2 s" in client.ended[1]
            assert 3 not in client.ended
        assert len(await generate(served, request([1]))) == 1

    serve(engine, body, limits=LIMITS)
    check_whole(engine)
    assert [record.message for record in caplog.records] == []


def test_so_does_a_stream_of_kserve(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever of its samples waits for its turn."""
    monkeypatch.setattr(answer_writer, "WRITE_TIMEOUT_S", 0.2)
    loaded = load_tiny(tmp_path)

    async def body(served: KServed) -> None:
        async with ShutClient.connected(served.address) as client:
            client.call(1, INFER, streamed(n=4, seed=1))
            await until(lambda: served.engine.stats().requests_finished_total != {})
            await until(lambda: served.host.num_requests == 0)
            client.open(1)
            await until(lambda: 1 in client.ended)
            assert b"the client has taken no message" in client.ended[1]
        assert served.host.admission.num_requests == 0

    serve_kserve(loaded, body)
    assert [record.message for record in caplog.records] == []
    check_whole(loaded.engine)
