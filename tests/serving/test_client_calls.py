"""What becomes of a client's call when the server refuses, is slow or wrong."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from hybrid import (
    EngineClosed,
    FinishReason,
    InvalidRequest,
    Overloaded,
    SamplingParams,
    UnsupportedFeature,
)
from hybrid.client import (
    ClientOptions,
    HybridClient,
    RetryPolicy,
    RpcFailed,
)
from hybrid.scheduler import DuplicateRequest, ModelNotFound
from tests.serving.client_stand import (
    IDS,
    PROMPT,
    QUICK,
    ScriptedService,
    answers,
    ask_async,
    ask_sync,
    chunk,
    complete,
    refuses,
    running_script,
)

Code = grpc.StatusCode
AWAY = refuses(Code.UNAVAILABLE)


CLIENTS = pytest.mark.parametrize("ask", [ask_sync, ask_async])
Ask = Callable[..., tuple[int, ...]]


ERRORS = [
    (Code.INVALID_ARGUMENT, InvalidRequest),
    (Code.OUT_OF_RANGE, InvalidRequest),
    (Code.ALREADY_EXISTS, DuplicateRequest),
    (Code.NOT_FOUND, ModelNotFound),
    (Code.UNIMPLEMENTED, UnsupportedFeature),
    (Code.UNAVAILABLE, EngineClosed),
    (Code.RESOURCE_EXHAUSTED, Overloaded),
    (Code.DEADLINE_EXCEEDED, TimeoutError),
    (Code.INTERNAL, RpcFailed),
    (Code.UNAUTHENTICATED, RpcFailed),
    (Code.FAILED_PRECONDITION, RpcFailed),
    (Code.CANCELLED, RpcFailed),
]
RETRIED = {Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED}


@pytest.mark.parametrize(("code", "kind"), ERRORS)
@CLIENTS
def test_a_status_is_an_error_of_ours(
    code: grpc.StatusCode, kind: type[Exception], ask: Ask
) -> None:
    """With the server's words in it, and the status itself beside it; asked once."""
    service = ScriptedService(refuses(code))
    once = ClientOptions(retry=RetryPolicy(max_retries=1, first_wait_s=0.001))
    with running_script(service) as address, pytest.raises(kind) as caught:
        ask(address, once, stream=False)
    assert type(caught.value) is kind
    assert "scripted" in str(caught.value)
    failure = caught.value if kind is RpcFailed else caught.value.__cause__
    assert isinstance(failure, RpcFailed)
    assert (failure.code, failure.details) == (code.name, "scripted")
    assert len(service.requests) == (2 if code in RETRIED else 1)


def test_threads_share_a_client() -> None:
    """Many at once, each with its own answer."""

    def act(request: Any, context: Any) -> Iterator[Any]:  # noqa: ARG001 - an Act
        yield complete(*request.tokenized.input_ids)

    with (
        running_script(ScriptedService(act)) as address,
        HybridClient(address) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        prompts = [[number, number + 1] for number in range(64)]
        found = pool.map(lambda prompt: client.generate(prompt, IDS)[0], prompts)
        assert [list(answer.token_ids) for answer in found] == prompts


BROKEN: dict[str, list[Any]] = {
    "before the answer": [chunk(7)],
    "sample 3": [chunk(7, index=3)],
    "after the end of sample 0": [complete(7), complete(7)],
    "finish reason 'tired'": [complete(7, reason="tired")],
}


@pytest.mark.parametrize("words", BROKEN)
def test_a_server_that_breaks_the_protocol_is_told_of(words: str) -> None:
    """Half an answer never passes for a whole one."""

    def act(request: Any, context: Any) -> Iterator[Any]:  # noqa: ARG001 - an Act
        yield from BROKEN[words]

    with (
        running_script(ScriptedService(act)) as address,
        pytest.raises(RpcFailed, match=words),
    ):
        ask_sync(address, QUICK, stream=True)


def test_an_aborted_answer_says_so() -> None:
    """The end that another has made is no error."""
    service = ScriptedService(answers(7, reason="abort"))
    with running_script(service) as address, HybridClient(address) as client:
        (answer,) = client.generate(PROMPT, IDS)
    assert answer.finish_reason is FinishReason.ABORT


def test_a_message_over_the_limit_is_no_overload() -> None:
    """It is refused by name, and not asked for again: it would not shrink."""

    def act(request: Any, context: Any) -> Iterator[Any]:  # noqa: ARG001 - an Act
        yield complete(*range(10_000))

    service = ScriptedService(act)
    options = ClientOptions(max_message_bytes=1000)
    with running_script(service) as address:
        with pytest.raises(InvalidRequest, match="larger than max"):
            ask_sync(address, options, stream=False)
        with (
            HybridClient(address, options) as client,
            pytest.raises(InvalidRequest, match="larger than max"),
        ):
            client.generate(list(range(10_000)), IDS)
    assert len(service.requests) == 1


def test_health_is_asked_once() -> None:
    """Whether a server is there is the question, so nobody waits for it."""
    service = ScriptedService(AWAY)
    with (
        running_script(service) as address,
        HybridClient(address) as client,
        pytest.raises(EngineClosed, match="away"),
    ):
        client.health()
    assert service.num_health_calls == 1


@CLIENTS
def test_nobody_there(ask: Ask) -> None:
    """A port without a server is tried, then told of."""
    with running_script(ScriptedService(AWAY)) as address:
        pass
    with pytest.raises(EngineClosed, match=address.rpartition(":")[2]):
        ask(address, QUICK, stream=False)


def test_a_wrong_request_fails_where_it_is_made() -> None:
    """Before anything is sent, and before the answer is asked for."""
    service = ScriptedService(answers(7))
    with running_script(service) as address, HybridClient(address) as client:
        with pytest.raises(InvalidRequest, match="prompt"):
            client.stream([-1], IDS)
        with pytest.raises(UnsupportedFeature, match="cache_salt"):
            client.stream({"prompt_token_ids": [1], "cache_salt": "x"}, IDS)
        with pytest.raises(UnsupportedFeature, match="bad_words"):
            client.stream([1], SamplingParams(bad_words=("x",)))
    assert service.requests == []
