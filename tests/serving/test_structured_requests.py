"""Constraints over the wire: what comes back has the form that was asked for."""

import json
import re
from pathlib import Path
from typing import Any

import grpc
import jsonschema
import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb
from structlog.testing import capture_logs

from hybrid.grammar import compiler
from hybrid.serving.served_model import ServedModel
from tests.serving.service_stand import (
    Served,
    generate,
    load_tiny,
    refusal,
    request,
    serve,
)

SCHEMA = {
    "type": "object",
    "properties": {"unit": {"enum": ["kg", "m"]}, "count": {"enum": [1, 20]}},
    "required": ["unit", "count"],
    "additionalProperties": False,
}


def answer_to(folder: Path, **constraint: Any) -> tuple[str, str]:
    """Text and finish reason under a constraint, from a model without a mind."""
    loaded = load_tiny(folder)
    tokenizer = loaded.engine.tokenizer
    assert tokenizer is not None
    message = request("Say it.", max_tokens=100, **constraint)

    async def body(served: Served) -> tuple[str, str]:
        (complete,) = await generate(served, message)
        text = tokenizer.decode(complete.output_ids, skip_special_tokens=True)
        return text, complete.finish_reason

    return serve(loaded.engine, body, ServedModel.of(loaded))


def test_a_schema_is_kept(tmp_path: Path) -> None:
    """The answer ends by itself, and fits the schema by a judge of its own."""
    text, reason = answer_to(tmp_path, json_schema=json.dumps(SCHEMA))
    jsonschema.validate(json.loads(text), SCHEMA)
    assert reason == "stop"


def test_a_choice_is_one_of_those_offered(tmp_path: Path) -> None:
    """Nothing before, nothing after."""
    choice = pb.ChoiceConstraint(choices=["maybe", "never"])
    assert answer_to(tmp_path, choice=choice) in [("maybe", "stop"), ("never", "stop")]


def test_a_pattern_is_matched_whole(tmp_path: Path) -> None:
    """Python's own engine agrees."""
    text, reason = answer_to(tmp_path, regex="[0-9]{3}-[a-f]{2}")
    assert re.fullmatch("[0-9]{3}-[a-f]{2}", text)
    assert reason == "stop"


@pytest.mark.parametrize(
    ("constraint", "named"),
    [
        ({"json_schema": "no json"}, "json_schema"),
        ({"regex": "("}, "regex"),
        ({"grammar": "root ::= nowhere"}, "grammar"),
        ({"structural_tag": "{}"}, "structural_tag"),
        ({"choice": pb.ChoiceConstraint()}, "choice"),
    ],
)
def test_a_constraint_that_means_nothing_is_refused(
    tmp_path: Path, constraint: dict[str, Any], named: str
) -> None:
    """INVALID_ARGUMENT names the kind; the server goes on."""
    loaded = load_tiny(tmp_path)

    async def body(served: Served) -> grpc.aio.AioRpcError:
        status = await refusal(served.stub.Generate(request([1, 2], **constraint)))
        assert len(await generate(served, request([1, 2]))) == 1
        return status

    status = serve(loaded.engine, body, ServedModel.of(loaded))
    assert status.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert named in str(status.details())


@pytest.mark.parametrize("stream", [False, True])
def test_a_form_that_cannot_go_on_is_no_fault_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """A client can meet a limit of llguidance's in mid-answer; the next is answered."""
    monkeypatch.setattr(compiler, "MAX_LEXER_STATES", 20)
    loaded = load_tiny(tmp_path)
    message = request("x", stream=stream, max_tokens=100, regex="[ab]{40}c")

    async def body(served: Served) -> grpc.aio.AioRpcError:
        status = await refusal(served.stub.Generate(message))
        assert len(await generate(served, request("y"))) == 1
        return status

    with capture_logs() as events:
        status = serve(loaded.engine, body, ServedModel.of(loaded))
    assert status.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "structured_output cannot go on" in str(status.details())
    trailers = status.trailing_metadata()
    assert trailers is not None
    assert ("smg-constraint-failed", "engine") in tuple(trailers)
    levels = {event["event"]: event["log_level"] for event in events}
    assert levels["request.failed"] == "warning"
    assert "rpc.failed" not in levels
