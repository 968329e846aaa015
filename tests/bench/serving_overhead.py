"""Tokens a second through gRPC streaming beside the engine in process, in turns.

    whole      ``LLM.generate``, which makes no output before the end
    streaming  ``AsyncHybridEngine.generate``: what the server has, without gRPC
    grpc       ``hybrid serve``, and a client with one event loop

The server is a process of its own, the client another: on few cores they take time from
the engine, as they do in production. The engines in process have one each, for two that
share a process were seen to be slower, even in turns.

python tests/bench/serving_overhead.py --batch 32
"""

import argparse
import asyncio
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import grpc
import numpy as np
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

from hybrid import LLM, SamplingParams
from hybrid.async_engine import AsyncHybridEngine

Prompts = list[list[int]]
Engine = Callable[[Prompts, int], int]
COMMAND = (sys.executable, "-c", "from hybrid.cli import main; main()", "serve")


def load(options: argparse.Namespace) -> LLM:
    """Load the model without its text: a gateway makes it elsewhere, too."""
    return LLM(
        options.model,
        executor=options.executor,
        dtype="bfloat16",
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
    )


def params_of(num_tokens: int) -> SamplingParams:
    """Ask for what the client of gRPC asks for."""
    return SamplingParams(
        temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False
    )


def whole(options: argparse.Namespace) -> Engine:
    """``LLM.generate``."""
    llm = load(options)

    def run(prompts: Prompts, num_tokens: int) -> int:
        outputs = llm.generate(prompts, params_of(num_tokens), use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return run


def streaming(options: argparse.Namespace) -> Engine:
    """``AsyncHybridEngine.generate``, in one event loop."""
    llm = load(options)
    runner = asyncio.Runner()

    async def start() -> AsyncHybridEngine:
        return AsyncHybridEngine(llm.llm_engine)

    engine = runner.run(start())

    async def one(prompt: list[int], params: SamplingParams) -> int:
        num_tokens = 0
        async for output in engine.generate(prompt, params):
            num_tokens = len(output.outputs[0].token_ids)
        return num_tokens

    async def all_of(prompts: Prompts, num_tokens: int) -> int:
        params = params_of(num_tokens)
        return sum(await asyncio.gather(*(one(each, params) for each in prompts)))

    return lambda prompts, num_tokens: runner.run(all_of(prompts, num_tokens))


def work(pipe: Connection, kind: str, options: argparse.Namespace) -> None:
    """Answer what comes, in a process of its own."""
    run = {"whole": whole, "streaming": streaming}[kind](options)
    while True:
        pipe.send(run(*pipe.recv()))


def apart(kind: str, options: argparse.Namespace, stack: ExitStack) -> Engine:
    """Start an engine in a process of its own, which ends with ``stack``."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=work, args=(theirs, kind, options), daemon=True)
    process.start()
    theirs.close()  # or nobody would hear that its end has died
    stack.callback(process.terminate)

    def run(prompts: Prompts, num_tokens: int) -> int:
        ours.send((prompts, num_tokens))
        answer: int = ours.recv()
        return answer

    return run


def through_grpc(address: str) -> Engine:
    """Generate streams of one event loop, as a gateway has them."""

    async def one(stub: Any, name: str, prompt: list[int], num_tokens: int) -> int:
        request = pb.GenerateRequest(
            request_id=name,
            tokenized=pb.TokenizedInput(input_ids=prompt),
            sampling_params=pb.SamplingParams(
                temperature=0, max_tokens=num_tokens, ignore_eos=True
            ),
            stream=True,
        )
        answers = stub.Generate(request)
        return sum([len(answer.chunk.token_ids) async for answer in answers])

    async def all_of(prompts: Prompts, num_tokens: int) -> int:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = pb_grpc.VllmEngineStub(channel)
            start = time.monotonic_ns()
            calls = [
                one(stub, f"bench-{start}-{index}", prompt, num_tokens)
                for index, prompt in enumerate(prompts)
            ]
            return sum(await asyncio.gather(*calls))

    return lambda prompts, num_tokens: asyncio.run(all_of(prompts, num_tokens))


def serve(options: argparse.Namespace) -> "tuple[subprocess.Popen[str], str]":
    """Start a server; its process and address."""
    arguments = ["--model", options.model, "--executor", options.executor]
    arguments += ["--dtype", "bfloat16", "--no-prefix-caching", "--port", "0"]
    arguments += ["--stream-interval", options.stream_interval]
    process = subprocess.Popen(  # noqa: S603 - ours
        [*COMMAND, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    _, address, *_ = process.stdout.readline().split()
    return process, address.removeprefix("grpc=")


def measure(engines: dict[str, Engine], options: argparse.Namespace, batch: int) -> str:
    """Run the engines in turns; one line of medians and ratios."""
    rng = np.random.default_rng(0)
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for round_ in range(options.rounds + 1):
        prompts = rng.integers(100, 40_000, (batch, options.tokens)).tolist()
        for name, engine in engines.items():
            started = time.perf_counter()
            num_tokens = engine(prompts, options.tokens)
            assert num_tokens == batch * options.tokens
            if round_:  # the first is to warm up
                rates[name].append(num_tokens / (time.perf_counter() - started))
    medians = {name: statistics.median(seen) for name, seen in rates.items()}
    parts = [
        f"{name} {rate:.1f} ({medians['grpc'] / rate:.3f})"
        for name, rate in medians.items()
    ]
    return f"batch {batch:3}: {', '.join(parts)}"


def main() -> None:
    """Print one line a batch size: tokens a second, and gRPC's share of that."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--stream-interval", default="auto", help="of the server")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=128, help="in, and out")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    # As ``hybrid`` sets it for its own process.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    with ExitStack() as stack:
        engines = {
            "whole": apart("whole", options, stack),
            "streaming": apart("streaming", options, stack),
        }
        process, address = serve(options)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        engines["grpc"] = through_grpc(address)
        for batch in options.batch:
            print(measure(engines, options, batch), flush=True)


if __name__ == "__main__":
    main()
