"""A served model and its gateway for the tests that drive both by ``openai``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
from smg_grpc_proto import vllm_engine_pb2 as pb

from tests.serving.serve_process import (
    Client,
    ServeProcess,
    addresses,
    connected,
    started,
    until,
)

HELLO: Any = [{"role": "user", "content": "hi"}]
MAX_REQUESTS = 4
OPTIONS = (
    *("--port", "0", "--http-port", "0", "--served-model-name", "tiny"),
    *("--max-requests", str(MAX_REQUESTS), "--num-kv-blocks", "1000"),
    *("-x", "max_model_len=30000", "--gateway-option", "tool-call-parser=json"),
)


class Stand:
    """A running server, whose executor says what it is told to."""

    def __init__(self, server: ServeProcess, http: str, engine: Client) -> None:
        self.server = server
        self.engine = engine
        self.http = http
        self.openai = openai.OpenAI(
            base_url=f"{http}/v1", api_key="none", max_retries=0
        )

    def say(self, text: str) -> None:
        """Answer every request by a text."""
        (self.server.folder / "answer").write_text(text, "utf-8")

    def chat(self, **options: Any) -> Any:
        """Ask for a chat completion."""
        given = {"model": "tiny", "messages": HELLO} | options
        return self.openai.chat.completions.create(**given)

    def is_idle(self) -> bool:
        """Whether no request is left, and no block is in use."""
        loads = self.engine.engine.GetLoads(pb.GetLoadsRequest(), timeout=60).loads
        return loads[0].num_total_reqs == 0 and loads[0].num_used_tokens == 0


@contextmanager
def running_stand(folder: Path) -> Iterator[Stand]:
    """Run a server; for several tests, as a gateway takes seconds to end."""
    with started(folder, *OPTIONS) as server:
        ports = addresses(server)
        with connected(ports["grpc"]) as engine:
            stand = Stand(server, ports["http"], engine)
            yield stand
            stand.openai.close()


@contextmanager
def idle(stand: Stand) -> Iterator[Stand]:
    """For one test: nothing runs before it and, whatever it did, after it."""
    until(stand.is_idle)
    stand.say("Hello, world")
    yield stand
    (stand.server.folder / "hold").unlink(missing_ok=True)
    until(stand.is_idle)


def gather(chunks: Any) -> tuple[dict[int, str], dict[int, str], list[Any]]:
    """Read a stream: texts and finish reasons by index, and the usage chunks."""
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    usages = []
    for chunk in chunks:
        for choice in chunk.choices:
            assert choice.index not in reasons
            delta = getattr(choice, "delta", None)
            text = choice.text if delta is None else delta.content
            texts[choice.index] = texts.get(choice.index, "") + (text or "")
            if choice.finish_reason is not None:
                reasons[choice.index] = choice.finish_reason
        if chunk.usage is not None:
            assert not chunk.choices
            usages.append(chunk.usage)
    return texts, reasons, usages
