"""How the cost of a decode step grows with the batch and with the context.

Each context is that of the last token. One or two minutes; ``-o`` adds plots.

python -m tests.bench.cpu_scaling --executor cpu:quantization=int8 -o scaling
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from hybrid.bench import Benchmark, EngineChoice, Measurement, Workload
from hybrid.bench.plots import check_matplotlib, write_plots

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096)
MAX_PROMPT_TOKENS = 16_384
"""Of a workload, all requests together: prefill takes the time."""


def workloads(
    batches: Sequence[int], contexts: Sequence[int], num_tokens: int
) -> list[Workload]:
    """Every batch at the least context, every context at a batch of 1 and of 8."""
    grid = [(batch, min(contexts)) for batch in batches]
    grid += [(batch, context) for batch in (1, 8) for context in contexts]
    return [
        Workload(batch, context - num_tokens, num_tokens)
        for batch, context in dict.fromkeys(grid)
        if batch * (context - num_tokens) <= MAX_PROMPT_TOKENS
    ]


def show(measured: Sequence[Measurement]) -> None:
    """Print one line a workload; a step's cost beside that of the first."""
    base = measured[0]
    for one in sorted(measured, key=lambda one: (one.workload.context, one.workload)):
        assert one.inter_token_s is not None
        assert base.inter_token_s is not None
        assert one.decode_tokens_per_s is not None
        step_ms = 1000 * one.inter_token_s.p50
        growth = one.inter_token_s.p50 / base.inter_token_s.p50
        print(
            f"context {one.workload.context:5}  batch {one.workload.batch:4}  "
            f"step {step_ms:8.2f} ms ({growth:6.2f}x)  "
            f"{step_ms / one.workload.batch:7.3f} ms a token  "
            f"decode {one.decode_tokens_per_s.median:8.1f} tokens/s  "
            f"prefill {one.prefill_tokens_per_s.median:8.1f} tokens/s  "
            f"KV {one.kv_bytes / 2**20:7.1f} MiB"
        )


def main() -> None:
    """Measure, print, and draw if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--executor", default="cpu")
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--context", type=int, nargs="+", default=CONTEXTS)
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--output", "-o", type=Path)
    options = parser.parse_args()
    if options.output is not None:
        check_matplotlib()
        options.output.mkdir(parents=True, exist_ok=True)
    report = Benchmark(
        [EngineChoice.parse(options.executor)],
        workloads(options.batch, options.context, options.tokens),
        num_rounds=options.rounds,
        options={"model": options.model, "kv_cache_memory": "2GiB"},
    ).run()
    show(report.measurements)
    if options.output is not None:
        report.write(options.output / "results.json")
        for path in write_plots(report, options.output):
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
