"""When a client asks again, how long it waits, and when it gives up."""

from collections.abc import Callable

import grpc
import pytest

from hybrid import (
    EngineClosed,
    Overloaded,
)
from hybrid.client import (
    ClientOptions,
    HybridClient,
    RetryPolicy,
    RpcFailed,
)
from hybrid.client.retry import Attempts
from tests.serving.client_stand import (
    IDS,
    PROMPT,
    QUICK,
    ScriptedService,
    answers,
    ask_async,
    ask_sync,
    refuses,
    running_script,
)

Code = grpc.StatusCode
FULL = refuses(Code.RESOURCE_EXHAUSTED)
AWAY = refuses(Code.UNAVAILABLE)


CLIENTS = pytest.mark.parametrize("ask", [ask_sync, ask_async])
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True])
Ask = Callable[..., tuple[int, ...]]


@CLIENTS
@BOTH_WAYS
def test_a_server_that_comes_back_is_asked_again(ask: Ask, stream: bool) -> None:
    """Away, full, then there: one answer, one request id, no token twice."""
    service = ScriptedService(AWAY, FULL, answers(7, 8))
    with running_script(service) as address:
        assert ask(address, QUICK, stream=stream) == (7, 8)
    assert len(service.requests) == 3
    assert len({request.request_id for request in service.requests}) == 1


@CLIENTS
@BOTH_WAYS
def test_patience_ends(ask: Ask, stream: bool) -> None:
    """After so many retries the last refusal is the caller's."""
    service = ScriptedService(FULL)
    with running_script(service) as address, pytest.raises(Overloaded):
        ask(address, QUICK, stream=stream)
    assert len(service.requests) == 1 + QUICK.retry.max_retries


@CLIENTS
def test_after_a_token_nothing_is_asked_again(ask: Ask) -> None:
    """An answer that breaks off is an error: another one might go on otherwise."""
    service = ScriptedService(refuses(Code.UNAVAILABLE, after=1), answers(7))
    with running_script(service) as address:
        with pytest.raises(EngineClosed, match="scripted"):
            ask(address, QUICK, stream=True)
        assert len(service.requests) == 1


def test_what_came_before_the_break_is_given() -> None:
    """The caller has the parts up to the error."""
    service = ScriptedService(refuses(Code.UNAVAILABLE, after=2))
    with running_script(service) as address, HybridClient(address, QUICK) as client:
        parts = client.stream(PROMPT, IDS)
        assert [next(parts).token_ids for _ in range(2)] == [(0,), (1,)]
        with pytest.raises(EngineClosed):
            next(parts)


@CLIENTS
def test_a_hint_is_honoured_within_limits(ask: Ask) -> None:
    """A server that wants to be left alone for an hour is not asked again."""
    hour = refuses(Code.RESOURCE_EXHAUSTED, ("retry-after-ms", "3600000"))
    service = ScriptedService(hour)
    with running_script(service) as address, pytest.raises(Overloaded) as caught:
        ask(address, QUICK, stream=True)
    assert caught.value.retry_after_s == 3600
    assert len(service.requests) == 1


def refused(hint_s: float | None = None) -> RpcFailed:
    """What a full server says."""
    return RpcFailed("RESOURCE_EXHAUSTED", "full", retry_after_s=hint_s)


def test_waits_grow_to_a_limit_and_differ() -> None:
    """Doubled each time, drawn from the upper half, never above the limit."""
    policy = RetryPolicy(max_retries=6, first_wait_s=1.0, max_wait_s=10.0)
    runs = []
    for _ in range(20):
        attempts = Attempts(policy, None)
        runs.append([attempts.next_wait_s(refused()) for _ in range(6)])
        with pytest.raises(Overloaded):
            attempts.next_wait_s(refused())
    for waits, longest in zip(
        zip(*runs, strict=True), [1, 2, 4, 8, 10, 10], strict=True
    ):
        assert all(longest / 2 <= wait <= longest for wait in waits)
        assert len(set(waits)) > 1


def test_no_wait_is_shorter_than_the_hint() -> None:
    """The server knows better when it has room; nor do all come back at once."""
    policy = RetryPolicy(max_retries=50, first_wait_s=0.1, max_wait_s=5.0)
    attempts = Attempts(policy, None)
    waits = [attempts.next_wait_s(refused(2.0)) for _ in range(3)]
    assert all(2.0 < wait < 2.5 for wait in waits)
    assert len(set(waits)) == 3


def test_a_wait_that_outlasts_the_call_is_not_begun() -> None:
    """The refusal comes at once, not when the time is up."""
    now_s = 100.0
    policy = RetryPolicy(first_wait_s=0.1)
    attempts = Attempts(policy, 1.5, clock=lambda: now_s)
    assert attempts.remaining_s == 1.5
    assert attempts.next_wait_s(refused(1.0)) < 1.5
    now_s += 1.0
    with pytest.raises(Overloaded):
        attempts.next_wait_s(refused(1.0))


@pytest.mark.parametrize("hint", ["soon", "", "-5", "1" * 400])
def test_a_hint_that_is_no_hint_breaks_nothing(hint: str) -> None:
    """The call fails as it would have failed anyway."""
    service = ScriptedService(
        refuses(Code.RESOURCE_EXHAUSTED, ("retry-after-ms", hint)), answers(7)
    )
    never = ClientOptions(retry=RetryPolicy(max_retries=0))
    with running_script(service) as address, pytest.raises(Overloaded):
        ask_sync(address, never, stream=False)
