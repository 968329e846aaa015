"""``hybrid serve`` with its gateway, driven by the official ``openai`` client."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import openai
import pytest

from tests.serving.openai_stand import (
    HELLO,
    MAX_REQUESTS,
    Stand,
    gather,
    idle,
    running_stand,
)
from tests.serving.serve_process import until


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


def test_the_model_is_listed(stand: Stand) -> None:
    """Clients see the name that the server was given."""
    assert [model.id for model in stand.openai.models.list()] == ["tiny"]


def test_chat_whole_and_streamed(stand: Stand) -> None:
    """A stream adds up to the answer; one last chunk has the same usage, if wanted."""
    whole = stand.chat()
    (choice,) = whole.choices
    assert (choice.message.content, choice.finish_reason) == ("Hello, world", "stop")
    # The model's own end is a token, too.
    assert whole.usage.completion_tokens == len("Hello, world") + 1
    texts, reasons, usages = gather(
        stand.chat(stream=True, stream_options={"include_usage": True})
    )
    assert (texts, reasons) == ({0: "Hello, world"}, {0: "stop"})
    (usage,) = usages
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [getattr(usage, c) for c in counts] == [
        getattr(whole.usage, c) for c in counts
    ]
    assert gather(stand.chat(stream=True))[2] == []


def test_completions_whole_and_streamed(stand: Stand) -> None:
    """The older API says the same, of a prompt without a template."""
    create = stand.openai.completions.create
    whole = create(model="tiny", prompt="hi")
    assert whole.choices[0].text == "Hello, world"
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == 2
    texts, reasons, _ = gather(create(model="tiny", prompt="hi", stream=True))
    assert (texts, reasons) == ({0: "Hello, world"}, {0: "stop"})


@pytest.mark.parametrize("stream", [False, True])
def test_max_tokens_cuts_an_answer(stand: Stand, stream: bool) -> None:
    """The reason is length, and the tokens are as many as were allowed."""
    result = stand.chat(max_tokens=5, stream=stream)
    if stream:
        assert gather(result)[:2] == ({0: "Hello"}, {0: "length"})
    else:
        assert result.choices[0].message.content == "Hello"
        assert result.choices[0].finish_reason == "length"
        assert result.usage.completion_tokens == 5


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers(stand: Stand, stream: bool) -> None:
    """Each of n answers ends once, and the usage counts all of them."""
    options = {"stream_options": {"include_usage": True}} if stream else {}
    result = stand.chat(n=2, seed=7, stream=stream, **options)
    if stream:
        texts, reasons, (usage,) = gather(result)
    else:
        texts = {c.index: c.message.content for c in result.choices}
        reasons = {c.index: c.finish_reason for c in result.choices}
        usage = result.usage
    assert texts == {0: "Hello, world", 1: "Hello, world"}
    assert reasons == {0: "stop", 1: "stop"}
    assert usage.completion_tokens == 2 * (len("Hello, world") + 1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_is_cut_off_and_ends_the_request(
    stand: Stand, stream: bool
) -> None:
    """Nothing of it leaks into a stream; our own stream ends there."""
    stand.say("one two three" + " and on" * 1000)
    result = stand.chat(stop=["two"], stream=stream)
    if stream:
        assert gather(result)[:2] == ({0: "one "}, {0: "stop"})
    else:
        assert result.choices[0].message.content == "one "
        assert result.usage.completion_tokens == len("one two")


def test_a_stop_string_leaves_the_models_own_end(stand: Stand) -> None:
    """What a user adds to the model's ends does not take their place."""
    (choice,) = stand.chat(stop=["never said"]).choices
    assert (choice.message.content, choice.finish_reason) == ("Hello, world", "stop")


def test_logprobs_belong_to_their_tokens(stand: Stand) -> None:
    """Each token of the text has its own, and as many alternatives as asked for."""
    choice = stand.chat(logprobs=True, top_logprobs=2).choices[0]
    entries = choice.logprobs.content
    # The gateway leaves out the one of the model's own end.
    assert [entry.token for entry in entries] == list("Hello, world")
    for entry in entries:
        assert [len(entry.top_logprobs), entry.bytes] == [2, list(entry.token.encode())]
        assert entry.top_logprobs[0].token == entry.token
        assert entry.top_logprobs[0].logprob == entry.logprob
        assert entry.top_logprobs[1].logprob < entry.logprob


@pytest.mark.parametrize(
    ("options", "status", "word"),
    [
        ({"model": "nope"}, 404, "nope"),
        ({"temperature": -1}, 400, "temperature"),
        ({"top_p": 2}, 400, "top_p"),
        ({"messages": []}, 400, "messages"),
        ({"max_tokens": -1}, 400, "max_tokens"),
        ({"max_tokens": 40000}, 400, "max_tokens"),
        ({"n": 0}, 400, "n:"),
        ({"top_logprobs": 50, "logprobs": True}, 400, "top_logprobs"),
        ({"messages": [{"role": "user", "content": "x" * 31000}]}, 400, "context"),
        ({"extra_body": {"min_tokens": 9, "max_tokens": 3}}, 400, "min_tokens"),
        ({"extra_body": {"stop_token_ids": [9999]}}, 400, "stop_token_ids"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_is_the_clients_fault(
    stand: Stand, options: dict[str, Any], status: int, word: str, stream: bool
) -> None:
    """It is a 4xx with an error object that names what is wrong; the next one works."""
    with pytest.raises(openai.APIStatusError) as refused:
        stand.chat(stream=stream, **options)
    assert refused.value.status_code == status
    body = refused.value.body
    assert isinstance(body, dict)
    assert set(body) >= {"message", "type", "code", "param"}
    assert word in body["message"]
    assert stand.chat().choices[0].message.content == "Hello, world"


def test_a_full_server_says_429(stand: Stand) -> None:
    """A request above the limit is refused, however often the gateway asks again."""
    stand.server.set_gate("hold")
    with ThreadPoolExecutor(MAX_REQUESTS) as clients:
        answers = [clients.submit(stand.chat) for _ in range(MAX_REQUESTS)]
        until(lambda: stand.engine.num_active() == MAX_REQUESTS)
        with pytest.raises(openai.RateLimitError) as refused:
            stand.chat()
        body = refused.value.body
        assert isinstance(body, dict)
        assert f"at most {MAX_REQUESTS}" in body["message"]
        stand.server.open_gate("hold")
        for answer in answers:
            assert answer.result().choices[0].message.content == "Hello, world"


def test_a_client_that_leaves_a_stream_frees_its_blocks(stand: Stand) -> None:
    """The request is not computed to its end for nobody."""
    stand.say("on and " * 1500)
    before = aborted(stand)
    stream = stand.chat(stream=True)
    for _ in range(3):
        next(stream)
    stream.close()
    until(lambda: aborted(stand) == before + 1)
    until(stand.is_idle)


def test_a_client_that_leaves_without_a_stream_frees_its_blocks(stand: Stand) -> None:
    """The same where the client had seen nothing yet."""
    stand.say("on and " * 1500)
    before = aborted(stand)
    stand.server.set_gate("hold")
    connection = HTTPConnection(stand.http.removeprefix("http://"), timeout=60)
    body = json.dumps({"model": "tiny", "messages": HELLO})
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/chat/completions", body, headers)
    until(lambda: stand.engine.num_active() == 1)
    connection.close()
    until(lambda: stand.engine.num_active() == 0)
    stand.server.open_gate("hold")
    until(lambda: aborted(stand) == before + 1)
    until(stand.is_idle)


def aborted(stand: Stand) -> int:
    """How many requests ended as aborted, by their own lines in the log."""
    *lines, _unfinished = stand.server.log.split("\n")
    events = [json.loads(line) for line in lines if line.startswith("{")]
    return sum(event.get("finish_reason") == "abort" for event in events)
