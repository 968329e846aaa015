"""Drives a KServe server by Triton's official client; prints what it was told.

    python kserve_client.py HOST:PORT

Runs in a process of its own: the client's messages and those of other libraries that
the tests import cannot lie in one protobuf pool. Also says whether the server's own
messages are those of the client, field by field.
"""

import asyncio
import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2

from hybrid.serving.kserve_messages import MESSAGES

TIMEOUT_S = 60
SAMPLING = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True}


def inputs(text: str, *, stream: bool = False) -> list[Any]:
    """The text, and whether its answer comes in pieces."""
    prompt = triton.InferInput("text_input", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([text.encode()], dtype=np.object_))
    flag = triton.InferInput("stream", [1], "BOOL")
    flag.set_data_from_numpy(np.array([stream]))
    return [prompt, flag]


def text_of(result: Any) -> str:
    """The answer's text, or a piece of it."""
    text: bytes = result.as_numpy("text_output")[0]
    return text.decode()


def sync_answers(address: str) -> dict[str, Any]:
    """What the synchronous client is told."""
    with triton.InferenceServerClient(address) as client:
        bad = {**SAMPLING, "temperature": -1.0}
        try:
            client.infer("tiny", inputs("Hello"), parameters=bad)
        except triton.InferenceServerException as error:
            refusal = error.status()
        result = client.infer("tiny", inputs("Hello"), parameters=SAMPLING)
        metadata = client.get_model_metadata("tiny", as_json=True)
        return {
            "live": client.is_server_live(),
            "ready": client.is_server_ready(),
            "model_ready": client.is_model_ready("tiny"),
            "other_ready": client.is_model_ready("other"),
            "server": client.get_server_metadata(as_json=True)["name"],
            "outputs": [tensor["name"] for tensor in metadata["outputs"]],
            "refusal": refusal,
            "text": text_of(result),
            "num_output_tokens": int(result.as_numpy("num_output_tokens")[0]),
            "stream": stream_answers(client),
        }


def stream_answers(client: Any) -> dict[str, list[Any]]:
    """By request id: the pieces, or the error, of two requests on one stream."""
    told: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: told.put((result, error)))
    for name, parameters in (("a", SAMPLING), ("b", {**SAMPLING, "top_p": 2.0})):
        client.async_stream_infer(
            "tiny",
            inputs("Hello", stream=True),
            request_id=name,
            parameters=parameters,
            enable_empty_final_response=True,
        )
    pieces: dict[str, list[Any]] = {"a": [], "b": []}
    is_over = False
    while not (is_over and pieces["b"]):
        result, error = told.get(timeout=TIMEOUT_S)
        if error is not None:
            pieces["b"].append(str(error))
            continue
        response = result.get_response()
        pieces[response.id].append(text_of(result))
        is_over = response.parameters["triton_final_response"].bool_param
    client.stop_stream()
    return pieces


async def aio_answers(address: str) -> dict[str, Any]:
    """What the asyncio client is told."""

    async def requests() -> Any:
        for name in ("a", "b"):
            yield {
                "model_name": "tiny",
                "inputs": inputs("Hello", stream=True),
                "request_id": name,
                "parameters": SAMPLING,
            }

    async with triton_aio.InferenceServerClient(address) as client:
        result = await client.infer("tiny", inputs("Hello"), parameters=SAMPLING)
        texts = {"a": "", "b": ""}
        async for piece, error in client.stream_infer(requests()):
            assert error is None
            texts[piece.get_response().id] += text_of(piece)
        return {"text": text_of(result), "stream": texts}


def fields(descriptor: Any) -> list[Any]:
    """A message's fields, those of messages in it included; names of types left out."""
    return [
        (
            field.name,
            field.number,
            field.type,
            field.is_repeated,
            field.containing_oneof and field.containing_oneof.name,
            field.message_type and fields(field.message_type),
        )
        for field in descriptor.fields
    ]


def unlike_messages() -> list[str]:
    """Names of those messages that are not as the client has them."""
    known = [name for name in MESSAGES if hasattr(service_pb2, name)]
    return [
        name
        for name in known
        if fields(MESSAGES[name].DESCRIPTOR)
        != fields(getattr(service_pb2, name).DESCRIPTOR)
    ] + [name for name in MESSAGES if name.endswith("Request") and name not in known]


def main() -> None:
    """Print everything as one line of JSON."""
    address = sys.argv[1]
    print(  # noqa: T201 - whoever started us reads it
        json.dumps(
            {
                "unlike": unlike_messages(),
                "sync": sync_answers(address),
                "aio": asyncio.run(aio_answers(address)),
            }
        )
    )


if __name__ == "__main__":
    main()
