"""Answers in a form, through the gateway: by a JSON schema, and calls of tools."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from tests.serving.openai_stand import Stand, gather, idle, running_stand


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """One server for all tests."""
    with running_stand(tmp_path_factory.mktemp("serve")) as stand:
        yield stand


@pytest.fixture
def stand(running: Stand) -> Iterator[Stand]:
    """The server, idle before and after."""
    with idle(running):
        yield running


TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


def test_a_tool_call(stand: Stand) -> None:
    """What a model says in its own form reaches the client as a call, both ways."""
    stand.say('{"name": "get_weather", "parameters": {"city": "Paris"}}')
    (choice,) = stand.chat(tools=TOOLS).choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    deltas = [
        part
        for chunk in stand.chat(tools=TOOLS, stream=True)
        for part in (chunk.choices[0].delta.tool_calls or ())
    ]
    assert deltas[0].function.name == "get_weather"
    arguments = "".join(part.function.arguments or "" for part in deltas)
    assert json.loads(arguments) == {"city": "Paris"}


FORCED: Any = {"type": "function", "function": {"name": "get_weather"}}


def test_a_tool_call_that_is_forced(stand: Stand) -> None:
    """The model would say anything else; the call fits the tool's own schema."""
    (stand.server.folder / "answer").unlink()
    schema = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Paris"]}}}
    schema |= {"required": ["city"], "additionalProperties": False}
    tools: Any = [
        {
            "type": "function",
            "function": {"name": "get_weather", "parameters": schema, "strict": True},
        }
    ]
    result = stand.chat(tools=tools, tool_choice=FORCED, temperature=0, max_tokens=500)
    (call,) = result.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    jsonschema.validate(json.loads(call.function.arguments), schema)


PERSON: Any = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ada", "Alan", "Grace"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {
            "type": "array",
            "items": {"enum": ["a", "b"]},
            "minItems": 1,
            "maxItems": 3,
        },
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def by_schema(schema: Any) -> dict[str, Any]:
    """The option that asks for an answer by a JSON schema."""
    form = {"name": "answer", "schema": schema, "strict": True}
    return {"type": "json_schema", "json_schema": form}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_an_answer_by_a_json_schema(
    stand: Stand, stream: bool, temperature: float
) -> None:
    """Whatever the model would rather say, the answer fits the schema."""
    (stand.server.folder / "answer").unlink()
    result = stand.chat(
        response_format=by_schema(PERSON),
        stream=stream,
        temperature=temperature,
        seed=1,
        max_tokens=500,
    )
    if stream:
        texts, reasons, _ = gather(result)
        text, reason = texts[0], reasons[0]
    else:
        (choice,) = result.choices
        text, reason = choice.message.content, choice.finish_reason
    assert reason == "stop"
    jsonschema.validate(json.loads(text), PERSON)


def test_a_json_object(stand: Stand) -> None:
    """Without a schema an answer is some JSON object, or was cut off within one."""
    stand.say('{"a": [1, 2]}')
    form = {"type": "json_object"}
    (choice,) = stand.chat(response_format=form).choices
    assert json.loads(choice.message.content) == {"a": [1, 2]}


def test_a_schema_that_is_none_is_the_clients_fault(stand: Stand) -> None:
    """It is refused before anything runs, with the reason."""
    with pytest.raises(openai.BadRequestError) as refused:
        stand.chat(response_format=by_schema({"type": "no-such-type"}))
    body = refused.value.body
    assert isinstance(body, dict)
    assert "no-such-type" in body["message"]
