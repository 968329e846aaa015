"""Streams whose tokens are gathered: fewer messages, the same answer."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

from hybrid import FinishReason, RequestOutput, SamplingParams
from hybrid.serving.engine_host import EngineHost
from hybrid.serving.request_histograms import RequestHistograms
from hybrid.serving.serve_config import ServeConfig
from hybrid.serving.served_model import ServedModel
from hybrid.serving.server import Addresses, run_server
from tests.hybrid.null_stand import HeldExecutor, make_engine
from tests.serving.host_stand import with_host
from tests.serving.kserve_stand import KServed, infer_request, serve_kserve
from tests.serving.service_stand import (
    TIMEOUT_S,
    Served,
    collect,
    generate,
    load_tiny,
    num_tokens_told,
    request,
    serve,
    until,
)
from tests.serving.signal_stand import kept_signals

HOURS_S = 36_000.0
"""An interval that ends in no test."""
PROMPT = [1, 2, 3, 4, 5]


def answer_of(messages: list[Any], index: int = 0) -> tuple[Any, ...]:
    """What one sample's messages say, however they were cut."""
    own = [message for message in messages if message.index == index]
    *chunks, complete = own
    assert all(isinstance(chunk, pb.GenerateStreamChunk) for chunk in chunks)
    assert isinstance(complete, pb.GenerateComplete)
    for chunk in chunks:
        assert chunk.completion_tokens == len(chunk.token_ids) > 0
    if complete.finish_reason != "abort":
        assert list(complete.output_ids) == list(chunks[-1].token_ids)
    ids = [token_id for chunk in chunks for token_id in chunk.token_ids]
    logprobs = [
        value for chunk in chunks for value in chunk.output_logprobs.token_logprobs
    ]
    end = (complete.finish_reason, complete.matched_token_id, complete.matched_stop_str)
    return ids, logprobs, end


@pytest.mark.parametrize(
    "sampling",
    [
        {"max_tokens": 40, "ignore_eos": True},
        {"max_tokens": 40, "ignore_eos": True, "logprobs": 2, "prompt_logprobs": 1},
        {"max_tokens": 40, "n": 3, "seed": 7, "temperature": 1.0, "logprobs": 1},
        {"max_tokens": 100, "temperature": 1.0, "seed": 3, "stop_token_ids": [5, 6]},
    ],
)
def test_gathered_deltas_add_up_to_the_ungathered_answer(
    sampling: dict[str, Any],
) -> None:
    """Ids, log-probabilities, usage and ends are those of a chunk a token."""
    message = request(PROMPT, stream=True, **sampling)

    async def body(served: Served) -> list[Any]:
        return await generate(served, message)

    ungathered, gathered = (
        serve(make_engine(num_blocks=64), body, stream_interval_s=interval_s)
        for interval_s in (0.0, HOURS_S)
    )
    num_samples = max(message.sampling_params.n, 1)
    for index in range(num_samples):
        assert answer_of(gathered, index) == answer_of(ungathered, index)
    # All begin at once, are told of the step that begins the interval, and end one by
    # one, which tells the others too; beside that there is a complete each.
    assert len(gathered) <= num_samples * (1 + 1 + num_samples + 1)


def test_a_stop_string_ends_a_gathered_stream(tmp_path: Path) -> None:
    """At its token, with its name, as it ends any other."""
    loaded = load_tiny(tmp_path)
    tokenizer = loaded.engine.tokenizer
    assert tokenizer is not None

    async def body(served: Served) -> tuple[list[Any], list[Any]]:
        free = request("Hello", stream=True, ignore_eos=True, max_tokens=30)
        ids = answer_of(await generate(served, free))[0]
        text = tokenizer.decode(ids, skip_special_tokens=False)
        stop = text[20:22]
        stopped = request("Hello", ignore_eos=True, max_tokens=30, stop=[stop])
        (whole,) = await generate(served, stopped)
        stopped.stream = True
        return await generate(served, stopped), [whole, stop]

    messages, (whole, stop) = serve(
        loaded.engine, body, ServedModel.of(loaded), stream_interval_s=HOURS_S
    )
    ids, _, end = answer_of(messages)
    assert end == ("stop", 0, stop)
    assert ids == list(whole.output_ids)


def test_a_stream_that_stalls_is_told_what_it_has() -> None:
    """The timer wakes its reader, while the step that would is held."""
    executor = HeldExecutor(num_free_steps=6)
    engine = make_engine(num_blocks=64, executor=executor)

    async def body(served: Served) -> None:
        message = request(PROMPT, stream=True, max_tokens=20, ignore_eos=True)
        num_tokens = 0
        async for answer in served.stub.Generate(message):
            num_tokens += len(answer.chunk.token_ids)
            if num_tokens == 6:
                executor.let_go()
        assert num_tokens == 20

    serve(engine, body, stream_interval_s=0.02)


def test_an_abort_brings_what_was_gathered_at_once() -> None:
    """Nothing that was made is lost, and the step is not waited for."""
    executor = HeldExecutor(num_free_steps=6)
    engine = make_engine(num_blocks=64, executor=executor)

    async def body(served: Served) -> list[Any]:
        message = request(PROMPT, stream=True, max_tokens=20, ignore_eos=True)
        answer = asyncio.create_task(collect(served.stub.Generate(message)))
        await until(lambda: num_tokens_told(served, "r") == 6)
        await served.stub.Abort(pb.AbortRequest(request_ids=["r"]))
        messages = await answer
        executor.let_go()
        return messages

    ids, _, end = answer_of(serve(engine, body, stream_interval_s=HOURS_S))
    assert len(ids) == 6
    assert end == ("abort", 0, "")


def test_a_request_that_does_not_stream_wakes_nobody_in_between() -> None:
    """Its first token is timed when it comes; then there is its end."""
    executor = HeldExecutor(num_free_steps=5)
    engine = make_engine(num_blocks=64, executor=executor)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)

    async def body(host: EngineHost) -> list[RequestOutput]:
        times = RequestHistograms(max_model_len=128)
        host.watchers.append(times)
        outputs: list[RequestOutput] = []

        async def reader() -> None:
            stream = host.generate(
                PROMPT, params, request_id="r", num_prompt_tokens=5, stream=False
            )
            outputs.extend([output async for output in stream])

        task = asyncio.create_task(reader())
        await until(lambda: times.first_token_s.cumulative()[-1][1] == 1)
        await until(lambda: engine.stats().generation_tokens_total == 5)
        executor.let_go()
        await task
        return outputs

    *earlier, last = with_host(engine, body)
    assert len(earlier) == 1
    assert last.outputs[0].finish_reason is FinishReason.LENGTH
    assert last.metrics.num_output_tokens == 12


class OutputWatcher:
    """A ``RequestWatcher`` that keeps what readers were woken for."""

    def __init__(self, host: EngineHost) -> None:
        self.outputs: list[RequestOutput] = []
        host.watchers.append(self)

    def began(self, request_id: str, params: SamplingParams) -> None:
        """Nobody is woken by that."""

    def progressed(self, output: RequestOutput) -> None:
        """A reader has an output."""
        self.outputs.append(output)

    def ended(self, request_id: str, end: RequestOutput | BaseException) -> None:
        """Its last output was counted."""


def test_both_protocols_ask_for_no_pieces_where_none_are_wanted(
    tmp_path: Path,
) -> None:
    """A whole answer of many tokens wakes its reader twice at most."""

    async def vllm(served: Served) -> int:
        watcher = OutputWatcher(served.host)
        message = request(PROMPT, stream=False, max_tokens=60, ignore_eos=True)
        (complete,) = await generate(served, message)
        assert complete.completion_tokens == 60
        return len(watcher.outputs)

    async def kserve(served: KServed) -> int:
        watcher = OutputWatcher(served.host)
        await served.send("ModelInfer", infer_request(max_tokens=60))
        return len(watcher.outputs)

    assert serve(make_engine(num_blocks=64), vllm) <= 2
    assert serve_kserve(load_tiny(tmp_path), kserve) <= 2


def test_the_option_of_a_server_reaches_its_engine(tmp_path: Path) -> None:
    """A server that was told to gather does, for a single stream too."""
    loaded = load_tiny(tmp_path)
    config = ServeConfig(port=0, stream_interval_ms=10_000)
    ready: asyncio.Queue[Addresses] = asyncio.Queue()

    async def ask(address: str) -> list[Any]:
        message = request(PROMPT, stream=True, max_tokens=40, ignore_eos=True)
        async with grpc.aio.insecure_channel(address) as channel:
            stub = pb_grpc.VllmEngineStub(channel)
            return await collect(stub.Generate(message))

    async def main() -> list[Any]:
        server = asyncio.create_task(
            run_server(config, [], lambda: loaded, ready.put_nowait)
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await ask((await ready.get()).grpc)
        finally:
            server.cancel()
            await asyncio.wait({server}, timeout=TIMEOUT_S)
            assert server.cancelled()

    with kept_signals():
        messages = asyncio.run(main())
    assert len(answer_of(messages)[0]) == 40
    assert len(messages) <= 4
