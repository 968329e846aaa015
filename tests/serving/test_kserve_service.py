"""KServe's protocol: what is asked and answered, one call at a time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from hybrid import SamplingParams
from hybrid.serving.kserve_messages import MESSAGES
from hybrid.testing import check_whole
from tests.serving.kserve_stand import (
    KServed,
    Message,
    add_input,
    infer_request,
    serve_kserve,
    streamed,
    tensors,
)
from tests.serving.service_stand import load_tiny, refusal

Code = grpc.StatusCode


def answer_to(folder: Path, message: Message) -> dict[str, list[Any]]:
    """The outputs that one request gets."""

    async def body(served: KServed) -> dict[str, list[Any]]:
        response = await served.send("ModelInfer", message)
        assert (response.model_name, response.id) == ("tiny", "7")
        return tensors(response)

    return serve_kserve(load_tiny(folder), body)


def offline(folder: Path, text: str = "Hello", **sampling: Any) -> list[str]:
    """The texts that the engine gives without a server."""
    engine = load_tiny(folder).engine
    values = {"temperature": 0, "max_tokens": 8, "ignore_eos": True} | sampling
    engine.add_request("r", text, SamplingParams(**values))
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return [sample.text for sample in outputs[-1].outputs]


def test_a_server_tells_what_it_is_and_whether_it_takes_requests(
    tmp_path: Path,
) -> None:
    """Ready until it drains, alive until its engine fails; inputs and outputs named."""

    async def states(served: KServed) -> tuple[bool, ...]:
        live = await served.call("ServerLive")
        ready = await served.call("ServerReady")
        model = await served.call("ModelReady", name="tiny", version="1")
        return live.live, ready.ready, model.ready

    async def body(served: KServed) -> None:
        assert await states(served) == (True, True, True)
        assert not (await served.call("ModelReady", name="other")).ready
        assert (await served.call("ServerMetadata")).name == "hybrid"
        model = await served.call("ModelMetadata", name="tiny")
        assert model.platform == "hybrid_null"
        assert {"text_input", "stream"} == {tensor.name for tensor in model.inputs}
        assert "text_output" in {tensor.name for tensor in model.outputs}
        served.host.begin_drain()
        assert await states(served) == (True, False, False)

    serve_kserve(load_tiny(tmp_path), body)


def test_a_text_is_continued_as_offline(tmp_path: Path) -> None:
    """Text, why it ended, and how many tokens went in and came out."""
    outputs = answer_to(tmp_path / "a", infer_request())
    assert outputs["text_output"] == offline(tmp_path / "b")
    assert outputs["finish_reason"] == ["length"]
    assert outputs["num_output_tokens"] == [8]
    assert outputs["num_input_tokens"][0] > 0


def test_samples_lie_side_by_side_in_the_outputs(tmp_path: Path) -> None:
    """Two seeded samples, each that of the offline engine."""
    sampling = {"n": 2, "seed": 7, "temperature": 1.5}
    outputs = answer_to(tmp_path / "a", infer_request(**sampling))
    assert outputs["text_output"] == offline(tmp_path / "b", **sampling)
    assert len(set(outputs["text_output"])) == 2


def test_only_the_outputs_that_were_asked_for_come(tmp_path: Path) -> None:
    """In the order of the request."""
    message = infer_request()
    message.outputs.add(name="finish_reason")
    message.outputs.add(name="text_output")
    assert list(answer_to(tmp_path, message)) == ["finish_reason", "text_output"]


def by_tensors(message: Message) -> None:
    """Sampling fields as input tensors."""
    add_input(message, "temperature", "FP32", fp32_contents=[0.0])
    add_input(message, "max_tokens", "INT32", int_contents=[5])
    add_input(message, "ignore_eos", "BOOL", bool_contents=[True])
    add_input(message, "stop_token_ids", "INT64", int64_contents=[1, 2])


def by_json(message: Message) -> None:
    """Sampling fields as Triton's examples write them."""
    text = (
        b'{"temperature": "0.0", "max_tokens": "5", "ignore_eos": true,'
        b' "stop_token_ids": [1, 2], "logit_bias": {"3": -1}}'
    )
    add_input(message, "sampling_parameters", "BYTES", bytes_contents=[text])


@pytest.mark.parametrize("add_sampling", [by_tensors, by_json])
def test_sampling_fields_come_as_tensors_or_json(
    tmp_path: Path, add_sampling: Callable[[Message], None]
) -> None:
    """Both mean what the parameters of the request mean."""
    message = infer_request(temperature=None, max_tokens=None, ignore_eos=None)
    add_sampling(message)
    outputs = answer_to(tmp_path / "a", message)
    expected = offline(tmp_path / "b", max_tokens=5, stop_token_ids=(1, 2))
    assert outputs["text_output"] == expected


def altered(change: Callable[[Message], Any], **parameters: Any) -> Message:
    """A request with something wrong about it."""
    message = infer_request(**parameters)
    change(message)
    return message


def set_input(**fields: Any) -> Callable[[Message], None]:
    """Set fields of the text's tensor."""

    def change(message: Message) -> None:
        tensor = message.inputs[0]
        merged = MESSAGES["InferInputTensor"](**fields)
        for name in fields:
            tensor.ClearField(name)
        tensor.MergeFrom(merged)

    return change


def raw(*contents: bytes) -> Callable[[Message], None]:
    """Give the text as bytes beside its tensor."""

    def change(message: Message) -> None:
        message.inputs[0].ClearField("contents")
        message.raw_input_contents.extend(contents)

    return change


def typed(name: str, datatype: str, **contents: Any) -> Callable[[Message], None]:
    """Add a tensor."""
    return lambda message: add_input(message, name, datatype, **contents)


LONG_JSON = b"[" * 90_000
FAULTS: dict[str, tuple[Message, str]] = {
    "no text": (altered(lambda m: m.ClearField("inputs")), "text_input"),
    "a text that is a number": (
        altered(set_input(datatype="INT32", contents={"int_contents": [1]})),
        "text_input",
    ),
    "two texts": (
        altered(
            set_input(shape=[2], contents={"bytes_contents": [b"a", b"b"]}),
        ),
        "2 values",
    ),
    "no UTF-8": (
        altered(set_input(contents={"bytes_contents": [b"\xff"]})),
        "UTF-8",
    ),
    "a shape of other size": (altered(set_input(shape=[3])), "shape [3]"),
    "a negative shape": (altered(set_input(shape=[-1, -1, -1])), "shape"),
    "a shape of huge sizes": (altered(set_input(shape=[2**62] * 99)), "shape"),
    "an unknown datatype": (altered(set_input(datatype="FP8")), "FP8"),
    "a tensor twice": (
        altered(typed("text_input", "BYTES", bytes_contents=[b"x"])),
        "twice",
    ),
    "raw beside typed": (
        altered(lambda m: m.raw_input_contents.append(b"x")),
        "raw_input_contents",
    ),
    "a raw text cut short": (altered(raw(b"\x05\0\0\0abc")), "ends within"),
    "a raw length cut short": (altered(raw(b"\x05\0")), "ends within"),
    "raw contents too many": (altered(raw(b"\0\0\0\0", b"x")), "raw_input_contents"),
    "an unknown parameter": (infer_request(warmth=1), "warmth"),
    "a parameter without a value": (
        altered(lambda m: m.parameters["top_p"].SetInParent()),
        "top_p",
    ),
    "a parameter in two places": (
        altered(typed("max_tokens", "INT32", int_contents=[5])),
        "twice",
    ),
    "a value out of range": (infer_request(temperature=-1.0), "temperature"),
    "a text where a number belongs": (infer_request(max_tokens="many"), "max_tokens"),
    "JSON that is none": (
        altered(typed("sampling_parameters", "BYTES", bytes_contents=[b"{"])),
        "no JSON",
    ),
    "JSON too deep": (
        altered(typed("sampling_parameters", "BYTES", bytes_contents=[LONG_JSON])),
        "no JSON",
    ),
    "JSON of megabytes": (
        altered(typed("sampling_parameters", "BYTES", bytes_contents=[b" " * 10**6])),
        "at most 100000",
    ),
    "more ids than there are": (
        altered(typed("stop_token_ids", "INT64", int64_contents=[1] * 300)),
        "300 values, at most 258",
    ),
    "a raw number cut short": (
        altered(lambda m: (set_input(datatype="INT32")(m), raw(b"abcde")(m))),
        "no whole INT32s",
    ),
    "JSON that is no object": (
        altered(typed("sampling_parameters", "BYTES", bytes_contents=[b"[1]"])),
        "object",
    ),
    "an unknown output": (
        altered(lambda m: m.outputs.add(name="picture")),
        "picture",
    ),
    "an id without end": (
        altered(lambda m: setattr(m, "id", "i" * 257)),
        "257 characters, at most 256",
    ),
    "a stream": (streamed(), "ModelStreamInfer"),
    "a prompt that is too long": (infer_request("x" * 9999), "max_model_len"),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_bad_request_is_told_what_is_wrong(tmp_path: Path, fault: str) -> None:
    """INVALID_ARGUMENT that names it; the next request is answered."""
    message, named = FAULTS[fault]
    loaded = load_tiny(tmp_path)

    async def body(served: KServed) -> grpc.aio.AioRpcError:
        status = await refusal(served.send("ModelInfer", message))
        assert len((await served.send("ModelInfer", infer_request())).outputs) == 4
        assert served.host.admission.num_requests == 0
        return status

    status = serve_kserve(loaded, body)
    assert status.code() is Code.INVALID_ARGUMENT
    assert named in str(status.details())
    check_whole(loaded.engine)


@pytest.mark.parametrize(
    "fields", [{"model_name": "other"}, {"model_name": "tiny", "model_version": "2"}]
)
def test_another_model_is_not_found(tmp_path: Path, fields: dict[str, str]) -> None:
    """NOT_FOUND, and what is served instead."""
    message = infer_request()
    message.MergeFrom(MESSAGES["ModelInferRequest"](**fields))

    async def body(served: KServed) -> None:
        asked = {"name": fields["model_name"], "version": message.model_version}
        for call in (
            served.send("ModelInfer", message),
            served.call("ModelMetadata", **asked),
        ):
            status = await refusal(call)
            assert status.code() is Code.NOT_FOUND
            assert "'tiny'" in str(status.details())

    serve_kserve(load_tiny(tmp_path), body)
