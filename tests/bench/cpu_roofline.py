"""Where a step of executor ``cpu`` goes: milliseconds, GB/s and GOP/s by part.

GB/s counts what a part must read once (packed weights, or K and V), GOP/s two for each
product and sum. What no op of the plan takes is ``rest``: Python, and the call itself.
Beside them stands what the machine can do: a plain read of memory by all threads, and
the kernels' own int8 product where its weights are read seldom. An op ends when every
thread is through it: on a busy machine the time that a thread waits for a core is the
op's at whose end it was missed. About a minute.

python -m tests.bench.cpu_roofline --quantization int8
"""

import argparse
import ctypes
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybrid import EngineConfig, HybridEngine, SamplingParams, build_engine
from hybrid.backends.cpu.abi import Format, OpFlag, OpKind
from hybrid.backends.cpu.engine_directory import BuiltEngine
from hybrid.backends.cpu.native_runner import NativeRunner
from hybrid.backends.cpu.placed_plan import PlacedOp
from hybrid.backends.usable_cpus import num_usable_cpus
from hybrid.events import configure_logging
from tests.backends.kernel_plan import Arena, Plan, op
from tests.backends.kernel_stand import VARIANTS, KernelModel
from tests.backends.kernel_step import make_step
from tests.backends.packed_matrix import pack

PROMPT_TOKENS = 128
PREFILL_BATCH = 8
READ_BYTES = 256 << 20
"""By each thread: more than any cache holds."""
PRODUCT = (8192, 2048, 256)
"""Rows and columns of the weights, tokens."""


@dataclass(slots=True)
class Part:
    """Ops of one kind, over all layers: of one step."""

    seconds: float = 0.0
    num_bytes: float = 0.0
    num_operations: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """A step's size."""

    num_tokens: int
    num_rows: int
    """With logits."""
    num_kv_tokens: int
    """K and V read by the step, over all sequences."""
    num_pairs: int
    """Query and key, over all sequences."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one step took."""

    seconds: float
    parts: dict[str, Part]


class Meter:
    """Sums up what the kernels say of each op."""

    def __init__(self, engine: HybridEngine) -> None:
        runner = getattr(engine.executor, "_runner", None)
        if not isinstance(runner, NativeRunner):
            raise SystemExit("the kernels do not run here: see hybrid executors")
        self.built: BuiltEngine = runner._engine
        self.cell_bytes = runner.kv_spec().block_bytes(runner._block_size) / (
            runner._block_size * self.built.shape.num_layers
        )
        self.seconds: NDArray[np.float64] = np.zeros(len(self.built.ops))
        runner._step.seconds = self.seconds.ctypes.data_as(
            ctypes.POINTER(ctypes.c_double)
        )

    def parts(self, work: Work, num_steps: int) -> dict[str, Part]:
        """Time and work of one step of several that are alike."""
        parts: dict[str, Part] = {}
        for placed, seconds in zip(self.built.ops, self.seconds, strict=True):
            part = parts.setdefault(self._name(placed), Part())
            part.seconds += float(seconds) / num_steps
            self._add_work(part, placed, work)
        return parts

    def _name(self, placed: PlacedOp) -> str:
        kind = OpKind(placed.kind)
        if kind != OpKind.LINEAR:
            return kind.name.lower()
        name = self.built.weights[placed.weight].name
        return "head" if placed.flags & OpFlag.LOGITS else name.rpartition(".")[2]

    def _add_work(self, part: Part, placed: PlacedOp, work: Work) -> None:
        shape = self.built.shape
        if placed.kind == OpKind.LINEAR:
            weight = self.built.weights[placed.weight]
            num_rows = work.num_rows if placed.flags & OpFlag.ROWS else work.num_tokens
            part.num_bytes += weight.data.nbytes
            part.num_operations += 2 * weight.rows * weight.columns * num_rows
        elif placed.kind == OpKind.ATTENTION:
            part.num_bytes += work.num_kv_tokens * self.cell_bytes
            width = shape.num_heads * shape.head_dim
            part.num_operations += 4 * width * work.num_pairs


def run(
    engine: HybridEngine, meter: Meter, batch: int, num_steps: int
) -> tuple[StepCost, StepCost]:
    """Measure a prefill of all prompts in one step, and the mean step of the decode."""
    rng = np.random.default_rng(batch)
    params = SamplingParams(
        temperature=0, max_tokens=num_steps + 1, ignore_eos=True, detokenize=False
    )
    for index in range(batch):
        prompt = rng.integers(0, 40_000, PROMPT_TOKENS).tolist()
        engine.add_request(str(index), prompt, params)
    num_pairs = PROMPT_TOKENS * (PROMPT_TOKENS + 1) // 2
    prefill = Work(
        batch * PROMPT_TOKENS, batch, batch * PROMPT_TOKENS, batch * num_pairs
    )
    num_seen = batch * (PROMPT_TOKENS + num_steps // 2)
    decode = Work(batch, batch, num_seen, num_seen)
    first = _run_steps(engine, meter, prefill, 1)
    others = _run_steps(engine, meter, decode, num_steps)
    assert not engine.has_unfinished_requests()
    return first, others


def _run_steps(
    engine: HybridEngine, meter: Meter, work: Work, num_steps: int
) -> StepCost:
    meter.seconds[:] = 0
    started = time.perf_counter()
    for _ in range(num_steps):
        engine.step()
    elapsed = (time.perf_counter() - started) / num_steps
    return StepCost(elapsed, meter.parts(work, num_steps))


def best(costs: Sequence[StepCost]) -> StepCost:
    """Take the quickest of some: neighbours only ever slow one down."""
    return min(costs, key=lambda cost: cost.seconds)


def show(title: str, cost: StepCost, limits: "Limits") -> None:
    """Print a table of parts."""
    print(f"\n{title}: {1000 * cost.seconds:.3f} ms a step")
    print(
        f"{'part':12}{'ms':>9}{'share':>8}{'GB/s':>8}{'of read':>9}"
        f"{'GOP/s':>9}{'of product':>12}"
    )
    rest = Part(cost.seconds - sum(part.seconds for part in cost.parts.values()))
    for name, part in {**cost.parts, "rest": rest}.items():
        print(
            f"{name:12}{1000 * part.seconds:9.3f}{part.seconds / cost.seconds:8.1%}",
            end="",
        )
        if part.num_operations and part.seconds:
            gbps = part.num_bytes / part.seconds / 1e9
            gops = part.num_operations / part.seconds / 1e9
            print(
                f"{gbps:8.1f}{gbps / limits.read_gbps:9.0%}"
                f"{gops:9.1f}{gops / limits.product_gops:12.0%}",
                end="",
            )
        print()


@dataclass(frozen=True, slots=True)
class Limits:
    """What this machine was seen to do."""

    read_gbps: float
    product_gops: float


def measure_limits(num_threads: int) -> Limits:
    """Read memory with every thread, and multiply with the best kernels."""
    return Limits(_read_gbps(num_threads), _product_gops(num_threads))


def _read_gbps(num_threads: int) -> float:
    blocks = [np.ones(READ_BYTES, np.uint8) for _ in range(num_threads)]
    seen = []
    with ThreadPoolExecutor(num_threads) as pool:
        for _ in range(5):
            started = time.perf_counter()
            list(pool.map(np.max, blocks))
            seen.append(time.perf_counter() - started)
    return num_threads * READ_BYTES / min(seen) / 1e9


def _product_gops(num_threads: int) -> float:
    rows, columns, num_tokens = PRODUCT
    arena = Arena(rows=num_tokens)
    source, target = arena.activation(Format.INT8, columns), arena.plain(rows)
    plan = Plan(
        ops=[op(OpKind.LINEAR, source, target, weight=0)],
        weights=[pack(Format.INT8, rows, columns, np.random.default_rng(0))],
        arena=arena,
        num_threads=num_threads,
    )
    arrays = make_step([(0, num_tokens)])
    seen = []
    with KernelModel(plan, VARIANTS[-1]) as model:
        model.put(source, np.zeros((num_tokens, source.stride), np.uint8))
        for _ in range(5):
            seconds = ctypes.c_double(0.0)
            step = arrays.struct()
            step.seconds = ctypes.pointer(seconds)
            model._library.forward(model._handle, step)
            seen.append(seconds.value)
    return 2 * rows * columns * num_tokens / min(seen) / 1e9


def main() -> None:
    """Print the machine's limits, then a table for prefill and for each batch."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quantization", default="int8")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=num_usable_cpus())
    options = parser.parse_args()
    configure_logging("warning")
    limits = measure_limits(options.threads)
    print(
        f"{options.threads} threads, {VARIANTS[-1]}: "
        f"reads {limits.read_gbps:.1f} GB/s, "
        f"int8 products {limits.product_gops:.0f} GOP/s"
    )
    most = max(*options.batch, PREFILL_BATCH)
    config = EngineConfig(
        model=options.model,
        executor="cpu",
        executor_options={
            "quantization": options.quantization,
            "kv_cache_dtype": options.kv_cache_dtype,
            "implementation": "native",
        },
        dtype="float32" if options.quantization == "fp32" else "bfloat16",
        num_threads=options.threads,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        max_num_batched_tokens=most * PROMPT_TOKENS,
        kv_cache_memory="2GiB",
    )
    engine = build_engine(config, log_requests=False)
    meter = Meter(engine)
    try:
        for batch in dict.fromkeys((PREFILL_BATCH, *options.batch)):
            runs = [
                run(engine, meter, batch, options.steps)
                for _ in range(options.rounds + 1)
            ][1:]
            prefills, decodes = zip(*runs, strict=True)
            if batch == PREFILL_BATCH:
                title = f"prefill, {batch * PROMPT_TOKENS} tokens"
                show(title, best(prefills), limits)
            if batch in options.batch:
                show(f"decode, batch {batch}", best(decodes), limits)
    finally:
        engine.close()


if __name__ == "__main__":
    main()
