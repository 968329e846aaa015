"""Errors and the statuses that they become."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc
from smg_grpc_proto.generated import common_pb2
from structlog.testing import capture_logs

from hybrid.scheduler import errors
from hybrid.scheduler.errors import HybridError, Overloaded
from hybrid.serving.kserve_messages import MESSAGES, SERVICE
from hybrid.serving.kserve_service import add_kserve
from hybrid.serving.status_table import STATUS_OF_ERROR, status_of
from hybrid.serving.vllm_service import VllmEngineService
from tests.hybrid.null_stand import make_engine
from tests.serving.service_stand import (
    TIMEOUT_S,
    model_of,
    refusal,
    request,
    server_and_table,
)

Code = grpc.StatusCode
EXPECTED = {
    "InvalidRequest": Code.INVALID_ARGUMENT,
    "RequestTooLong": Code.INVALID_ARGUMENT,
    "OutOfBlocks": Code.INVALID_ARGUMENT,
    "DuplicateRequest": Code.ALREADY_EXISTS,
    "UnsupportedFeature": Code.INVALID_ARGUMENT,
    "Overloaded": Code.RESOURCE_EXHAUSTED,
    "EngineClosed": Code.UNAVAILABLE,
    "EngineFailed": Code.UNAVAILABLE,
    "ExecutorFailed": Code.UNAVAILABLE,
    "ModelNotFound": Code.NOT_FOUND,
    "FormFailed": Code.FAILED_PRECONDITION,
    "SamplingFailed": Code.INTERNAL,
    "CheckpointError": Code.INTERNAL,
    "ConfigError": Code.INTERNAL,
    "PluginError": Code.INTERNAL,
    "HybridError": Code.INTERNAL,
}


def error_of(kind: type[Exception], message: str) -> Exception:
    """An error of a class, whatever else its constructor asks for."""
    values: dict[str, Any] = {
        name: 1 if "num" in name or name in ("limit", "retry_after_s") else "x"
        for name, parameter in inspect.signature(kind.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
        and parameter.default is parameter.empty
    }
    return kind(message, **values)


def test_every_error_class_has_its_status() -> None:
    """No class of the engine's errors is left to chance, and the table has no other."""
    classes = {
        name: kind
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, HybridError)
    }
    assert set(classes) == set(EXPECTED)
    for name, kind in classes.items():
        code, message, _ = status_of(error_of(kind, "what went wrong"))
        assert (name, code) == (name, EXPECTED[name])
        assert message == "what went wrong"
    assert set(STATUS_OF_ERROR) <= {*classes.values(), TimeoutError}


def test_a_deadline_of_ours_is_one() -> None:
    """Waiting in vain is told as such."""
    assert status_of(TimeoutError("too slow"))[0] is Code.DEADLINE_EXCEEDED


def test_an_overloaded_server_says_when_to_come_back() -> None:
    """In milliseconds, beside the status; no other error has a hint."""
    _, _, trailers = status_of(Overloaded("full", retry_after_s=1.5))
    assert trailers == (("retry-after-ms", "1500"),)
    assert status_of(errors.EngineClosed("x"))[2] == ()


def test_a_form_that_fails_is_told_apart_from_a_fault_of_ours() -> None:
    """By a trailer that gateways know, and nothing is logged as a failed RPC."""
    with capture_logs() as events:
        status = status_in_a_call(errors.FormFailed("no way on", request_id="a"))
    assert status.code() is Code.FAILED_PRECONDITION
    trailers = status.trailing_metadata()
    assert trailers is not None
    assert ("smg-constraint-failed", "engine") in tuple(trailers)
    assert events == []


def test_a_bug_keeps_its_text_to_itself() -> None:
    """An unforeseen error is INTERNAL and names its class alone."""
    code, message, _ = status_of(KeyError("secret"))
    assert (code, message) == (Code.INTERNAL, "internal error (KeyError)")


VLLM = "vllm.grpc.engine.VllmEngine"


class Failing(pb_grpc.VllmEngineServicer):  # type: ignore[misc] # untyped
    """Raises whatever it was given."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def HealthCheck(self, request: Any, context: Any) -> None:  # noqa: ARG002, N802
        """Fail."""
        raise self._error


def seen_by_a_client(
    add_services: Callable[[Any], None], method: str, message: Any
) -> grpc.aio.AioRpcError:
    """The status of a call that fails."""

    async def main() -> grpc.aio.AioRpcError:
        server, table = server_and_table()
        port = server.add_insecure_port("127.0.0.1:0")
        add_services(table)
        await server.start()
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
            ):
                data = message.SerializeToString()
                return await refusal(channel.unary_stream(method)(data))
        finally:
            await server.stop(None)

    return asyncio.run(main())


def status_in_a_call(error: Exception) -> grpc.aio.AioRpcError:
    """The status of an RPC whose handler raises."""

    def add(table: Any) -> None:
        pb_grpc.add_VllmEngineServicer_to_server(Failing(error), table)

    return seen_by_a_client(add, f"/{VLLM}/HealthCheck", pb.HealthCheckRequest())


@pytest.mark.parametrize(
    "message", ["😀" * 5000, "half a pair: \ud800", "two\nlines\0", "ü" * 499 + "é"]
)
def test_any_message_arrives(message: str) -> None:
    """Trailers are small and take text alone: the status comes all the same."""
    status = status_in_a_call(errors.InvalidRequest(message))
    assert status.code() is Code.INVALID_ARGUMENT
    details = status.details()
    assert details is not None
    assert details[:10] == message[:10]
    assert len(details) <= 500


def test_a_hint_arrives_beside_its_status() -> None:
    """A client reads when to come back from the trailing metadata."""
    status = status_in_a_call(Overloaded("full", retry_after_s=2))
    assert status.code() is Code.RESOURCE_EXHAUSTED
    trailers = status.trailing_metadata()
    assert trailers is not None
    assert ("retry-after-ms", "2000") in tuple(trailers)


def test_a_bug_is_a_status_too() -> None:
    """The client gets INTERNAL, the log its text and place; neither has variables."""
    with capture_logs() as events:
        status = status_in_a_call(ZeroDivisionError("secret"))
    assert status.code() is Code.INTERNAL
    assert "secret" not in str(status.details())
    (event,) = events
    assert event["event"] == "rpc.failed"
    assert event["reason"] == "ZeroDivisionError: secret"
    assert "exc_info" not in event


class BrokenHost:
    """Knows its model; whatever else a service asks of it raises."""

    model = model_of(make_engine())

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError(f"secret {name}")


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (f"/{VLLM}/Generate", request([1, 2])),
        (f"/{VLLM}/HealthCheck", pb.HealthCheckRequest()),
        (f"/{VLLM}/GetServerInfo", pb.GetServerInfoRequest()),
        (f"/{VLLM}/GetLoads", pb.GetLoadsRequest()),
        (f"/{VLLM}/SubscribeKvEvents", common_pb2.SubscribeKvEventsRequest()),
        (f"/{VLLM}/FlushCache", common_pb2.FlushCacheRequest()),
        (f"/{SERVICE}/ServerLive", MESSAGES["ServerLiveRequest"]()),
        (f"/{SERVICE}/ServerReady", MESSAGES["ServerReadyRequest"]()),
        (f"/{SERVICE}/ModelReady", MESSAGES["ModelReadyRequest"](name="tiny")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_method_is_outside_the_table(method: str, message: Any) -> None:
    """A bug anywhere is INTERNAL, without its text; gRPC's own answer would tell it."""

    def add(table: Any) -> None:
        host: Any = BrokenHost()
        pb_grpc.add_VllmEngineServicer_to_server(VllmEngineService(host), table)
        add_kserve(table, host)

    with capture_logs() as events:
        status = seen_by_a_client(add, method, message)
    assert status.code() is Code.INTERNAL
    assert status.details() == "internal error (ZeroDivisionError)"
    assert [event["event"] for event in events] == ["rpc.failed"]
