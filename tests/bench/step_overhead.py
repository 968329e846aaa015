"""What a step costs outside of the executor: median microseconds, by part and batch.

The executor gives logits that lie ready, so all that is left is the engine's own.
With --cold it reads as much memory as a model's weights before: what the engine needs
is then in no cache of the processor, as in real steps.

python tests/bench/step_overhead.py --batch 1 8 32 128 --cold
"""

import argparse
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models

from hybrid import HybridEngine, SamplingParams
from hybrid.backends.interface import ForwardResult
from hybrid.backends.null.executor import NullExecutor
from hybrid.events import configure_if_unset
from hybrid.sampler.sampler import Sampler
from hybrid.scheduler import PagedScheduler, SchedulerConfig, StepPlan
from hybrid.tokenizer.tokenizer import Tokenizer

VOCAB = 49152
PROMPT_TOKENS = 128
WEIGHTS_BYTES = 128 << 20
PARTS = ("schedule", "ask", "check", "sample", "update", "outputs")


class ReadyExecutor(NullExecutor):
    """Logits are there before anybody asks."""

    def __init__(self, num_rows: int, *, is_cold: bool) -> None:
        super().__init__()
        self.weights = np.ones(WEIGHTS_BYTES if is_cold else 0, np.int8)
        rng = np.random.default_rng(0)
        self.rows = rng.standard_normal((num_rows, VOCAB)).astype(np.float32)

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Give as many rows as are wanted."""
        self.weights.max(initial=0)
        num_rows = sum(entry.num_logits_rows for entry in plan.scheduled)
        return ForwardResult(logits=self.rows[:num_rows])


class Meter:
    """Takes the time of the calls that it wraps."""

    def __init__(self) -> None:
        self.spent_ns: dict[str, list[int]] = {
            name: [] for name in (*PARTS, "execute", "step")
        }

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call``, its times noted under ``name``."""

        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.thread_time_ns()
            try:
                return call(*arguments, **options)
            finally:
                self.spent_ns[name].append(time.thread_time_ns() - start)

        return timed


def make_tokenizer() -> Tokenizer:
    """Byte-level text of as many words as the model has."""
    words = {f"\u0120w{index}": index for index in range(VOCAB)}
    backend = tokenizers.Tokenizer(models.WordLevel(words, unk_token="\u0120w0"))
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)


def make_engine(batch: int, *, is_cold: bool = False) -> HybridEngine:
    """An engine with room for ``batch`` requests."""
    limits = SchedulerConfig(
        block_size=16,
        num_blocks=batch * 64,
        max_model_len=1024,
        max_num_seqs=batch,
        max_num_batched_tokens=max(2048, batch * PROMPT_TOKENS),
        enable_prefix_caching=True,
    )
    return HybridEngine(
        PagedScheduler(limits),
        ReadyExecutor(batch, is_cold=is_cold),
        sampler=Sampler(VOCAB),
        tokenizer=make_tokenizer(),
        block_size=limits.block_size,
        log_requests=False,
    )


def measure(batch: int, options: argparse.Namespace) -> dict[str, float]:
    """Microseconds a decode step, by part."""
    engine: Any = make_engine(batch, is_cold=options.cold)
    params = SamplingParams(
        temperature=options.temperature,
        top_p=options.top_p,
        max_tokens=options.steps + 8,
        ignore_eos=True,
        detokenize=not options.tokens_only,
    )
    for index in range(batch):
        prompt = [(index * 31 + i) % VOCAB for i in range(PROMPT_TOKENS)]
        engine.add_request(
            str(index), {"prompt_token_ids": prompt}, params, stream=options.stream
        )
    for _ in range(4):
        engine.step()
    meter = Meter()
    scheduler, outputs = engine.scheduler, engine._outputs
    scheduler.schedule = meter.wrap("schedule", scheduler.schedule)
    scheduler.update = meter.wrap("update", scheduler.update)
    engine.executor.execute = meter.wrap("execute", engine.executor.execute)
    outputs.process = meter.wrap("outputs", outputs.process)
    sampler, forward = engine._sampler, engine._forward
    sampler.sample = meter.wrap("sample", sampler.sample)
    forward.ask = meter.wrap("ask", forward.ask)
    run, can_draw = forward._check.run, forward._check.can_draw
    forward._check = SimpleNamespace(run=meter.wrap("check", run), can_draw=can_draw)
    step = meter.wrap("step", engine.step)
    for _ in range(options.steps):
        step()
    engine.close()
    times = {name: np.array(ns) / 1000 for name, ns in meter.spent_ns.items()}
    times["total"] = times["step"] - times["execute"]
    times["glue"] = times["total"] - sum(times[name] for name in PARTS)
    # Medians of CPU time: others use the machine, too.
    return {name: float(np.median(spent)) for name, spent in times.items()}


def main() -> None:
    """Print one line per batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--stream", action="store_true", help="an output every step")
    parser.add_argument("--cold", action="store_true", help="empty the caches")
    parser.add_argument("--tokens-only", action="store_true", help="no text")
    options = parser.parse_args()
    configure_if_unset()
    print("batch", *(f"{name:>9}" for name in (*PARTS, "glue", "total")))
    for batch in options.batch:
        spent = measure(batch, options)
        columns = (f"{spent[name]:9.1f}" for name in (*PARTS, "glue", "total"))
        print(f"{batch:5}", *columns)


if __name__ == "__main__":
    main()
