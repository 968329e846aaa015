"""KServe's stream: many requests on one call, their pieces, failures and ends."""

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from hybrid import RequestOutput
from hybrid.backends.interface import ForwardResult
from hybrid.backends.null.executor import NullExecutor
from hybrid.scheduler import StepPlan
from hybrid.serving.kserve_answer import InferAnswer
from hybrid.serving.kserve_messages import MESSAGES, SERVICE
from hybrid.serving.kserve_request import InferRequest, parse_infer_request
from hybrid.serving.kserve_stream import MAX_UNANSWERED
from hybrid.serving.served_model import ServedModel
from hybrid.testing import check_whole
from tests.serving.kserve_stand import (
    KServed,
    Message,
    infer_request,
    numbered,
    responses,
    serve_kserve,
    streamed,
    tensors,
)
from tests.serving.service_stand import load_tiny, refusal, until


@dataclass(frozen=True)
class Recorded:
    """A request for two samples, and every output that the engine gave it."""

    message: Message
    parsed: InferRequest
    outputs: list[RequestOutput]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """One request, run step by step without a server."""
    loaded = load_tiny(tmp_path_factory.mktemp("model"))
    message = streamed(n=2, seed=7, temperature=1.5, max_tokens=12)
    parsed = parse_infer_request(message, ServedModel.of(loaded, name="tiny"))
    loaded.engine.add_request("r", parsed.prompt, parsed.params)
    outputs = []
    while loaded.engine.has_unfinished_requests():
        outputs += loaded.engine.step()
    return Recorded(message, parsed, outputs)


@given(missed=st.sets(st.integers(0, 10)))
def test_pieces_add_up_whatever_was_missed(
    recorded: Recorded, missed: set[int]
) -> None:
    """New text alone in each, nothing for a step without; the last alone is final."""
    answer = InferAnswer(recorded.message, recorded.parsed)
    outputs = recorded.outputs
    read = [output for step, output in enumerate(outputs) if step not in missed]
    pieces = [piece for output in read for piece in answer.pieces(output)]
    texts = [tensors(piece)["text_output"] for piece in pieces]
    for sample in outputs[-1].outputs:
        parts = [text[sample.index] for text in texts if sample.index < len(text)]
        assert "".join(parts) == sample.text
    finals = [piece.parameters["triton_final_response"].bool_param for piece in pieces]
    assert finals == [False] * (len(pieces) - 1) + [True]
    assert all(map(any, texts[:-1]))


def test_a_streamed_answer_is_that_of_model_infer(tmp_path: Path) -> None:
    """Its pieces together; every piece has the request's id, the last the reason."""

    async def body(served: KServed) -> tuple[list[Message], Message]:
        pieces = await responses(served.stream(), streamed())
        return pieces, await served.send("ModelInfer", infer_request())

    pieces, whole = serve_kserve(load_tiny(tmp_path), body)
    texts = [tensors(piece)["text_output"][0] for piece in pieces]
    assert "".join(texts) == tensors(whole)["text_output"][0]
    assert {piece.id for piece in pieces} == {"7"}
    reasons = [tensors(piece)["finish_reason"] for piece in pieces]
    assert reasons == [[""]] * (len(pieces) - 1) + [["length"]]


def test_without_stream_the_answer_comes_in_one_final_response(tmp_path: Path) -> None:
    """As by ModelInfer, but for the mark of the last; an empty one is not added."""
    message = infer_request(triton_enable_empty_final_response=True)

    async def body(served: KServed) -> tuple[list[Message], Message]:
        pieces = await responses(served.stream(), message)
        return pieces, await served.send("ModelInfer", infer_request())

    (piece,), whole = serve_kserve(load_tiny(tmp_path), body)
    assert piece.parameters["triton_final_response"].bool_param
    del piece.parameters["triton_final_response"]
    assert piece == whole


def test_requests_of_one_stream_get_their_own_answers(tmp_path: Path) -> None:
    """Side by side, those of one id too; each as it is alone."""
    texts = ["Hello", "a", "the rest", "Hello"]

    async def body(served: KServed) -> tuple[list[str], dict[str, str]]:
        alone = [
            tensors(await served.send("ModelInfer", infer_request(text)))
            for text in texts
        ]
        asked = [numbered(streamed(text), i) for i, text in enumerate(texts)]
        together = dict.fromkeys(map(str, range(len(texts))), "")
        for piece in await responses(served.stream(), *asked):
            together[piece.id] += tensors(piece)["text_output"][0]
        return [outputs["text_output"][0] for outputs in alone], together

    alone, together = serve_kserve(load_tiny(tmp_path), body)
    assert list(together.values()) == alone


def test_a_bad_request_is_told_in_the_stream_and_others_go_on(tmp_path: Path) -> None:
    """Its error names its id; the stream ends with OK."""
    bad = numbered(streamed(temperature=-1.0), 1)
    good = numbered(streamed(), 2)

    async def body(served: KServed) -> tuple[dict[str, str], set[str]]:
        call = served.stream()
        errors, ended = {}, set()
        for message in (bad, good):
            await call.write(message)
        await call.done_writing()
        async for answer in call:
            response = answer.infer_response
            if answer.error_message:
                errors[response.id] = answer.error_message
            elif response.parameters["triton_final_response"].bool_param:
                ended.add(response.id)
        assert await call.code() is grpc.StatusCode.OK
        return errors, ended

    errors, ended = serve_kserve(load_tiny(tmp_path), body)
    assert list(errors) == ["1"]
    assert "temperature" in errors["1"]
    assert ended == {"2"}


def test_bytes_that_are_no_request_are_told_in_the_stream(tmp_path: Path) -> None:
    """As a bad request is; the next one on the stream is answered."""

    async def body(served: KServed) -> list[Message]:
        call = served.channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            response_deserializer=MESSAGES["ModelStreamInferResponse"].FromString,
        )()
        await call.write(b"\0")
        bad = await call.read()
        await call.write(infer_request().SerializeToString())
        good = await call.read()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        return [bad, good]

    bad, good = serve_kserve(load_tiny(tmp_path), body)
    assert "no message" in bad.error_message
    assert good.infer_response.parameters["triton_final_response"].bool_param


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """What every step of the engine waits for; with an end, so that none hangs."""
    event = threading.Event()
    execute = NullExecutor.execute

    def wait(self: NullExecutor, plan: StepPlan) -> ForwardResult:
        assert event.wait(timeout=60), "nobody let the executor go"
        return execute(self, plan)

    monkeypatch.setattr(NullExecutor, "execute", wait)
    return event


def test_a_client_that_leaves_frees_all_its_blocks(
    tmp_path: Path, gate: threading.Event
) -> None:
    """Requests that run and that wait are gone; the next is answered; no noise."""
    loaded = load_tiny(tmp_path, max_num_seqs=2)

    async def body(served: KServed) -> None:
        call = served.stream()
        for number in range(4):
            await call.write(numbered(streamed(max_tokens=200), number))
        await until(lambda: served.host.num_requests == 4)
        call.cancel()
        await until(lambda: served.host.num_requests == 0)
        gate.set()
        assert await responses(served.stream(), streamed())

    with capture_logs() as events:
        serve_kserve(loaded, body)
    assert "rpc.failed" not in {event["event"] for event in events}
    check_whole(loaded.engine)


def test_a_stream_holds_so_many_requests_and_the_rest_wait(
    tmp_path: Path, gate: threading.Event
) -> None:
    """More than it holds are answered all the same, once there is room."""
    num_requests = MAX_UNANSWERED + 50
    peak = 0

    async def body(served: KServed) -> list[Message]:
        class Peak:
            """Notes how many requests there have been at once."""

            def began(self, *_: object) -> None:
                nonlocal peak
                peak = max(peak, served.host.num_requests)

            progressed = ended = began

        served.host.watchers.append(Peak())
        asked = [numbered(infer_request(max_tokens=1), i) for i in range(num_requests)]
        answers = asyncio.create_task(responses(served.stream(), *asked))
        await until(lambda: served.host.num_requests == MAX_UNANSWERED)
        gate.set()
        return await answers

    answers = serve_kserve(load_tiny(tmp_path), body)
    assert {answer.id for answer in answers} == set(map(str, range(num_requests)))
    assert len(answers) == num_requests
    assert peak == MAX_UNANSWERED


def test_requests_that_a_server_ends_say_abort(
    tmp_path: Path, gate: threading.Event
) -> None:
    """The drain's end is an answer like any other, final; samples may be empty."""

    async def body(served: KServed) -> list[Message]:
        asked = (streamed(n=2, max_tokens=200), infer_request())
        answers = asyncio.create_task(responses(served.stream(), *asked))
        await until(lambda: served.host.num_requests == 2)
        await served.host.drain(0.0)
        gate.set()
        return await answers

    for answer in serve_kserve(load_tiny(tmp_path), body):
        assert answer.parameters["triton_final_response"].bool_param
        assert set(tensors(answer)["finish_reason"]) == {"abort"}


def test_an_engine_that_dies_is_told_to_every_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the stream, each by its id, and the call ends; ModelInfer by its status."""

    def die(_self: NullExecutor, _plan: StepPlan) -> ForwardResult:
        raise RuntimeError("device lost")

    monkeypatch.setattr(NullExecutor, "execute", die)

    async def body(served: KServed) -> dict[str, str]:
        call = served.stream()
        for number in range(3):
            await call.write(numbered(streamed(), number))
        await call.done_writing()
        told = {answer.infer_response.id: answer.error_message async for answer in call}
        status = await refusal(served.send("ModelInfer", infer_request()))
        assert status.code() is grpc.StatusCode.UNAVAILABLE
        assert not (await served.call("ServerLive")).live
        return told

    told = serve_kserve(load_tiny(tmp_path), body)
    assert sorted(told) == ["0", "1", "2"]
    assert all("device lost" in message for message in told.values())
