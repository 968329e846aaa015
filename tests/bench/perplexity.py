"""How much of a model's quality each way to compute it costs.

Perplexity of a text of the repository, relative to the first engine's, and how often
both hold the same next token likeliest. About ten seconds an engine.

python tests/bench/perplexity.py
python tests/bench/perplexity.py --engines torch:float32 cpu:bfloat16:quantization=int4
"""

import argparse
import time
from pathlib import Path

from hybrid import LLM
from hybrid.bench import EngineChoice, TextScore, score_text
from hybrid.events import configure_logging

TEXT = Path(__file__).parents[1] / "data" / "reading.txt"
ENGINES = (
    "torch:float32",
    "torch:bfloat16",
    "cpu:float32",
    "cpu:bfloat16:quantization=bf16",
    "cpu:bfloat16:quantization=int8",
    "cpu:bfloat16:quantization=int8,kv_cache_dtype=int8",
    "cpu:bfloat16:quantization=int4",
)
"""Each ``executor:dtype[:option=value,...]``."""


def score(model: str, engine: str, text: str, *, window: int) -> TextScore:
    """Load one engine, score the text, unload it."""
    executor, dtype, *options = engine.split(":", 2)
    choice = EngineChoice.parse(":".join([executor, *options]))
    with LLM(
        model,
        executor=choice.executor,
        executor_options=choice.options,
        dtype=dtype,
        kv_cache_memory="1GiB",
    ) as llm:
        return score_text(llm, text, window_tokens=window)


def main() -> None:
    """Print one line an engine."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--characters", type=int, help="of the text; all by default")
    parser.add_argument("--window", type=int, default=512, help="tokens")
    parser.add_argument("--engines", nargs="+", default=ENGINES)
    options = parser.parse_args()
    configure_logging("warning")
    text = options.text.read_text("utf-8")[: options.characters]
    base: TextScore | None = None
    for engine in options.engines:
        started = time.perf_counter()
        found = score(options.model, engine, text, window=options.window)
        base = base or found
        print(
            f"{engine:52} {len(found.logprobs)} tokens, "
            f"perplexity {found.perplexity:.4f} "
            f"({100 * (found.perplexity / base.perplexity - 1):+.2f} %), "
            f"top-1 agreement {100 * found.agreement(base):.2f} %, "
            f"{time.perf_counter() - started:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
