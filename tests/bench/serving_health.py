"""How long a server takes to say that it is well while a long prefill runs.

The prefill takes every core; the client that asks is a process of its own beside it.

python tests/bench/serving_health.py --prompt-tokens 8000
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

COMMAND = (sys.executable, "-c", "from hybrid.cli import main; main()", "serve")
PAUSE_S = 0.01
"""Between two calls: who asks all the time measures itself."""


def serve(options: argparse.Namespace) -> "tuple[subprocess.Popen[str], str]":
    """Start a server; its process and address."""
    arguments = ["--model", options.model, "--executor", options.executor]
    arguments += ["--no-prefix-caching", "--port", "0"]
    process = subprocess.Popen(  # noqa: S603 - ours
        [*COMMAND, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    _, address, *_ = process.stdout.readline().split()
    return process, address.removeprefix("grpc=")


def prefill(engine: pb_grpc.VllmEngineStub, num_tokens: int) -> None:
    """Ask for one token after a prompt of random ids."""
    ids = np.random.default_rng(0).integers(100, 40_000, num_tokens).tolist()
    request = pb.GenerateRequest(
        request_id=f"bench-{time.monotonic_ns()}",
        tokenized=pb.TokenizedInput(input_ids=ids),
        sampling_params=pb.SamplingParams(temperature=0, max_tokens=1),
    )
    (answer,) = engine.Generate(request)
    assert len(answer.complete.output_ids) == 1


def time_beside(
    running: Future[None], ask: Callable[[], object]
) -> tuple[list[float], float]:
    """Ask while a request runs.

    Returns:
        Seconds of each call, and the most by which the client itself was woken late:
        what the machine's other processes take from everybody.
    """
    seconds, latest_s = [], 0.0
    while not running.done():
        started = time.perf_counter()
        ask()
        answered = time.perf_counter()
        seconds.append(answered - started)
        time.sleep(PAUSE_S)
        latest_s = max(latest_s, time.perf_counter() - answered - PAUSE_S)
    running.result()
    return seconds, latest_s


def main() -> None:
    """Print one line a call: how many, median, 99th percentile and worst."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--executor", default="torch")
    parser.add_argument("--prompt-tokens", type=int, default=8000)
    options = parser.parse_args()
    process, address = serve(options)
    channel = grpc.insecure_channel(address)
    engine = pb_grpc.VllmEngineStub(channel)
    health = health_pb2_grpc.HealthStub(channel)
    calls: dict[str, Callable[[], object]] = {
        "VllmEngine.HealthCheck": lambda: engine.HealthCheck(pb.HealthCheckRequest()),
        "grpc.health.v1 Check": lambda: health.Check(health_pb2.HealthCheckRequest()),
    }
    threads = ThreadPoolExecutor(1)
    try:
        for name, ask in calls.items():
            ask()
            started = time.perf_counter()
            running = threads.submit(prefill, engine, options.prompt_tokens)
            seconds, latest_s = time_beside(running, ask)
            took_s = time.perf_counter() - started
            per_cent = statistics.quantiles(seconds, n=100)
            print(
                f"{name}: {len(seconds)} calls beside a prefill of {took_s:.1f} s: "
                f"median {1e3 * per_cent[49]:.1f}, 99 % {1e3 * per_cent[98]:.1f}, "
                f"worst {1e3 * max(seconds):.1f} ms (the client itself was woken up to "
                f"{1e3 * latest_s:.1f} ms late)",
                flush=True,
            )
    finally:
        threads.shutdown()
        channel.close()
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
