"""A real model behind the OpenAI-compatible API: text in, sensible text out."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from tests.serving.openai_stand import gather
from tests.serving.serve_process import addresses, started

pytestmark = pytest.mark.model
CAPITAL: Any = [{"role": "user", "content": "What is the capital of France?"}]
ENGINE = (
    *("-m", "smollm2-135m", "--num-kv-blocks", "64", "--max-model-len", "1024"),
    # Its first word is a close call, which no rounding is to decide.
    *("--dtype", "float32"),
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """A client of a server that runs SmolLM2."""
    folder = tmp_path_factory.mktemp("smollm2")
    options = ("--port", "0", "--http-port", "0")
    with started(folder, *options, engine=ENGINE) as server:
        url = addresses(server)["http"]
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
            yield made


def ask(client: openai.OpenAI, **options: Any) -> Any:
    """Ask for the capital, greedily."""
    return client.chat.completions.create(
        model="smollm2-135m",
        messages=CAPITAL,
        temperature=0,
        max_tokens=60,
        **options,
    )


def test_the_capital_of_france(client: openai.OpenAI) -> None:
    """The model's template and end make an answer; its stream says the same."""
    (choice,) = ask(client).choices
    assert "Paris" in choice.message.content
    assert choice.finish_reason == "stop"
    texts, reasons, _ = gather(ask(client, stream=True))
    assert (texts, reasons) == ({0: choice.message.content}, {0: "stop"})


def test_a_stop_string_in_real_tokens(client: openai.OpenAI) -> None:
    """A stop that begins within a token cuts the text in its middle."""
    (whole,) = ask(client).choices
    (cut,) = ask(client, stop=["aris"]).choices
    assert cut.message.content == whole.message.content.partition("aris")[0]
    assert cut.message.content.endswith("P")


def test_a_json_answer_of_a_real_model(client: openai.OpenAI) -> None:
    """A small model, asked in prose, answers by the schema."""
    schema = {
        "type": "object",
        "properties": {"capital": {"type": "string", "maxLength": 20}},
        "required": ["capital"],
        "additionalProperties": False,
    }
    form = {"name": "capital", "schema": schema, "strict": True}
    response_format = {"type": "json_schema", "json_schema": form}
    (choice,) = ask(client, response_format=response_format).choices
    assert choice.finish_reason == "stop"
    answer = json.loads(choice.message.content)
    jsonschema.validate(answer, schema)
    assert "Paris" in answer["capital"]
