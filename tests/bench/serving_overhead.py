"""Tokens a second through gRPC streaming beside the engine in process, in turns.

The server is a process of its own, the client another: on few cores they take time from
the engine, as they do in production.

python tests/bench/serving_overhead.py --batch 32
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

from hybrid import LLM, SamplingParams

Prompts = list[list[int]]
Engine = Callable[[Prompts, int], int]
COMMAND = (sys.executable, "-c", "from hybrid.cli import main; main()", "serve")


def in_process(options: argparse.Namespace) -> Engine:
    """``LLM.generate``, without text: a gateway makes it elsewhere, too."""
    llm = LLM(
        options.model,
        executor=options.executor,
        dtype="bfloat16",
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
    )

    def run(prompts: Prompts, num_tokens: int) -> int:
        params = SamplingParams(
            temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False
        )
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

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
    process = subprocess.Popen(  # noqa: S603 - ours
        [*COMMAND, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    _, address, *_ = process.stdout.readline().split()
    return process, address.removeprefix("grpc=")


def main() -> None:
    """Print one line a batch size: medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--executor", default="torch")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=128, help="in, and out")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    process, address = serve(options)
    engines = [through_grpc(address), in_process(options)]
    rng = np.random.default_rng(0)
    try:
        for batch in options.batch:
            rates: list[list[float]] = [[], []]
            for round_ in range(options.rounds + 1):
                prompts = rng.integers(100, 40_000, (batch, options.tokens)).tolist()
                for engine, seen in zip(engines, rates, strict=True):
                    started = time.perf_counter()
                    num_tokens = engine(prompts, options.tokens)
                    assert num_tokens == batch * options.tokens
                    if round_:  # the first is to warm up
                        seen.append(num_tokens / (time.perf_counter() - started))
            ours, bare = map(statistics.median, rates)
            print(
                f"batch {batch:3}: gRPC {ours:7.1f}, in process {bare:7.1f} tokens/s, "
                f"ratio {ours / bare:.3f}"
            )
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
