"""Whatever is sent, the server answers or refuses by name, and goes on serving."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import common_pb2

from hybrid.serving.kserve_messages import MESSAGES, SERVICE
from tests.hybrid.cli_stand import write_tiny_model
from tests.serving.hostile_messages import changed
from tests.serving.serve_process import PATIENCE_S, ServeProcess, addresses, started

Code = grpc.StatusCode
EXPECTED = {
    Code.OK,
    Code.INVALID_ARGUMENT,
    Code.NOT_FOUND,
    Code.FAILED_PRECONDITION,
    Code.UNIMPLEMENTED,
    Code.RESOURCE_EXHAUSTED,
}
"""What a client at fault is told; the server's own faults have other codes."""
VLLM = "vllm.grpc.engine.VllmEngine"
BASES: dict[str, Any] = {
    "Generate": pb.GenerateRequest(
        request_id="r",
        tokenized=pb.TokenizedInput(input_ids=[40, 41, 42]),
        sampling_params=pb.SamplingParams(temperature=0, max_tokens=4),
    ),
    "Embed": pb.EmbedRequest(),
    "HealthCheck": pb.HealthCheckRequest(),
    "Abort": pb.AbortRequest(request_ids=["r"]),
    "GetModelInfo": pb.GetModelInfoRequest(),
    "GetServerInfo": pb.GetServerInfoRequest(),
    "GetLoads": pb.GetLoadsRequest(),
    "GetTokenizer": common_pb2.GetTokenizerRequest(),
    "FlushCache": common_pb2.FlushCacheRequest(),
    "StartProfile": common_pb2.StartProfileRequest(),
    "StopProfile": common_pb2.StopProfileRequest(),
    "SubscribeKvEvents": common_pb2.SubscribeKvEventsRequest(),
}
"""A request of each kind that is as it should be."""


METHODS = [
    *(f"/{VLLM}/{name}" for name in BASES),
    *(f"/{SERVICE}/{name}" for name in ("ServerLive", "ModelReady", "ModelInfer")),
    "/grpc.health.v1.Health/Check",
]


def kserve_base() -> Any:
    """A ``ModelInferRequest`` that is as it should be."""
    message = MESSAGES["ModelInferRequest"](model_name="tiny")
    message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    message.inputs[0].contents.bytes_contents.append(b"hello")
    message.parameters["max_tokens"].int64_param = 4
    return message


class Sender:
    """Sends bytes to one server."""

    def __init__(self, channel: Any, server: ServeProcess) -> None:
        self._channel = channel
        self.server = server

    def code(self, method: str, data: bytes) -> Any:
        """The status with which a method answers; its messages are read, not kept."""
        call = self._channel.unary_stream(method)(data, timeout=PATIENCE_S)
        try:
            for _ in call:
                if method.endswith("SubscribeKvEvents"):
                    call.cancel()
                    return Code.OK
        except grpc.RpcError as error:
            return error.code()  # type: ignore[attr-defined]
        return call.code()

    def check(self, method: str, data: bytes) -> None:
        """A status that the client can do something with; a good request runs after."""
        code = self.code(method, data)
        # A flush that may wait for no time at all is one that ran out of it.
        is_flush = method.endswith("FlushCache") and code is Code.DEADLINE_EXCEEDED
        assert code in EXPECTED or is_flush, code
        assert self.server.process.poll() is None
        good = BASES["Generate"].SerializeToString()
        assert self.code(f"/{VLLM}/Generate", good) is Code.OK


@pytest.fixture(scope="module")
def sender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sender]:
    """One server for all of these tests: none of them may end it."""
    folder = tmp_path_factory.mktemp("server")
    model = write_tiny_model(folder / "model")
    options = ["-m", str(model), "--served-model-name", "tiny", "--kserve"]
    with (
        started(folder, "--port", "0", *options) as server,
        grpc.insecure_channel(addresses(server)["grpc"]) as channel,
    ):
        yield Sender(channel, server)


def test_every_method_is_tried() -> None:
    """The protocol has no method that is left out here."""
    methods = pb.DESCRIPTOR.services_by_name["VllmEngine"].methods_by_name
    assert sorted(BASES) == sorted(methods)
    for name, base in BASES.items():
        assert base.DESCRIPTOR is methods[name].input_type


@settings(max_examples=100, deadline=None)
@given(message=changed(BASES["Generate"]))
def test_hostile_generate_requests(sender: Sender, message: Any) -> None:
    """Any field, of the request and of all within it, may hold anything."""
    sender.check(f"/{VLLM}/Generate", message.SerializeToString())


@settings(max_examples=300, deadline=None)
@given(sampling=changed(BASES["Generate"].sampling_params), stream=st.booleans())
def test_hostile_sampling_parameters(
    sender: Sender, sampling: Any, stream: bool
) -> None:
    """The same for its parameters alone, which reach farthest into the engine."""
    message = pb.GenerateRequest()
    message.CopyFrom(BASES["Generate"])
    message.sampling_params.CopyFrom(sampling)
    message.stream = stream
    sender.check(f"/{VLLM}/Generate", message.SerializeToString())


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_hostile_requests_of_other_methods(sender: Sender, data: st.DataObject) -> None:
    """The same for every other method of the service."""
    name = data.draw(st.sampled_from(sorted(BASES.keys() - {"Generate"})))
    message = data.draw(changed(BASES[name]))
    sender.check(f"/{VLLM}/{name}", message.SerializeToString())


@settings(max_examples=150, deadline=None)
@given(message=changed(kserve_base()))
def test_hostile_infer_requests(sender: Sender, message: Any) -> None:
    """KServe's request, whose tensors may contradict themselves."""
    sender.check(f"/{SERVICE}/ModelInfer", message.SerializeToString())


@settings(max_examples=100, deadline=None)
@given(method=st.sampled_from(METHODS), data=st.binary(max_size=60))
def test_random_bytes(sender: Sender, method: str, data: bytes) -> None:
    """A message by accident, or none at all."""
    sender.check(method, data)


@pytest.mark.parametrize("method", METHODS)
def test_bytes_that_are_no_message_are_an_invalid_argument(
    sender: Sender, method: str
) -> None:
    """Of every method; gRPC itself would say UNKNOWN."""
    assert sender.code(method, b"\0") is Code.INVALID_ARGUMENT
