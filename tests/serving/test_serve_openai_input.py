"""Prompts and conversations at the edge, through the gateway: an answer or a 400."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.serving.openai_stand import Stand, idle, running_stand


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


def asked(text: Any) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": text}


def called(arguments: str) -> dict[str, Any]:
    """An assistant's message that is nothing but a call of a tool."""
    function = {"name": "get_weather", "arguments": arguments}
    call = {"id": "1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize(
    "messages",
    [
        [asked([{"type": "text", "text": "hi"}])],
        [asked("")],
        [{"role": "system", "content": "be brief"}],
        [{"role": "developer", "content": "be brief"}, asked("hi")],
        [
            asked("?"),
            called("{}"),
            {"role": "tool", "tool_call_id": "1", "content": ""},
        ],
    ],
)
def test_a_conversation_that_is_unusual_is_answered(
    stand: Stand, messages: Any
) -> None:
    """Parts, no text, no user, a developer, a tool's answer."""
    (choice,) = stand.chat(messages=messages).choices
    assert choice.message.content == "Hello, world"


@pytest.mark.parametrize(
    "messages",
    [
        [asked(None)],
        [{"role": "nobody", "content": "hi"}],
        [called("not json"), asked("hi")],
        [asked([{"type": "image_url", "image_url": {"url": "data:image/png;,"}}])],
    ],
)
def test_a_conversation_that_is_none_is_the_clients_fault(
    stand: Stand, messages: Any
) -> None:
    """It is a 400, and the next request is answered."""
    with pytest.raises(openai.BadRequestError):
        stand.chat(messages=messages)
    assert stand.chat().choices[0].message.content == "Hello, world"


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], None, [1, 2], [[1, 2]]])
def test_an_empty_prompt_is_the_clients_fault(stand: Stand, prompt: Any) -> None:
    """So are token ids, which the gateway does not take."""
    create = stand.openai.completions.create
    with pytest.raises(openai.BadRequestError):
        create(model="tiny", prompt=prompt)
    assert create(model="tiny", prompt=" ").choices[0].text == "Hello, world"


@pytest.mark.parametrize(
    ("prompt", "num_answers"), [(["a", "b"], 2), (" ", 1), ("\x00", 1)]
)
def test_prompts_that_are_odd(stand: Stand, prompt: Any, num_answers: int) -> None:
    """Each of several prompts has its answer; white space is a prompt."""
    answer = stand.openai.completions.create(model="tiny", prompt=prompt)
    assert [choice.text for choice in answer.choices] == ["Hello, world"] * num_answers
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == num_answers


@pytest.mark.parametrize("penalty", [None, 0, 0.0])
def test_a_penalty_of_nothing_changes_nothing(stand: Stand, penalty: Any) -> None:
    """Zero that was sent is zero that was not."""
    (stand.server.folder / "answer").unlink()
    options = {} if penalty is None else {"presence_penalty": penalty}
    given = stand.chat(temperature=0, max_tokens=30, **options)
    plain = stand.chat(temperature=0, max_tokens=30)
    assert given.choices[0].message.content == plain.choices[0].message.content


@pytest.mark.parametrize("text", ['"\\ud800"', '"\\udc00 x"'])
def test_half_a_character_is_a_bad_request(stand: Stand, text: str) -> None:
    """A lone surrogate in JSON ends as a 400, not as an error of ours."""
    body = f'{{"model": "tiny", "messages": [{{"role": "user", "content": {text}}}]}}'
    headers = {"content-type": "application/json"}
    with pytest.raises(openai.BadRequestError):
        stand.openai.post(
            "/chat/completions",
            cast_to=object,
            content=body.encode(),
            options={"headers": headers},
        )
