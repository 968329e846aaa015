"""A form over a real model: what it says is valid, and still its own."""

import json

import jsonschema
import pytest

from hybrid import LLM, GrammarKind, SamplingParams, StructuredOutput

pytestmark = pytest.mark.model

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 24},
        "population": {"type": "integer", "minimum": 0},
        "is_capital": {"type": "boolean"},
    },
    "required": ["city", "population", "is_capital"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm() -> LLM:
    """SmolLM2 in float32 with a small pool."""
    return LLM("smollm2-135m", dtype="float32", num_kv_blocks=64)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_an_object_validates_and_names_the_city(llm: LLM, temperature: float) -> None:
    """Hot or not, it is an object of the schema; not hot, it says Paris."""
    form = StructuredOutput(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
    params = SamplingParams(
        temperature=temperature, seed=3, max_tokens=120, structured_output=form
    )
    question = "Which city is the capital of France? Answer in JSON."
    (output,) = llm.chat([{"role": "user", "content": question}], params)
    (sample,) = output.outputs
    assert sample.finish_reason == "stop"
    answer = json.loads(sample.text)
    jsonschema.validate(answer, SCHEMA)
    if temperature == 0.0:
        assert "Paris" in answer["city"]


def test_a_choice_is_the_likelier_of_its_texts(llm: LLM) -> None:
    """The model still chooses, among what may be said."""
    form = StructuredOutput(GrammarKind.CHOICE, choices=(" Paris", " Berlin"))
    params = SamplingParams(temperature=0.0, structured_output=form)
    (output,) = llm.generate("The capital of Germany is", params)
    assert output.outputs[0].text == " Berlin"
