"""One OpenVINO model under hybrid's scheduler and under OpenVINO GenAI's, in turns.

Both run the same IR directory in one process with the same properties: GenAI's
continuous-batching pipeline has OpenVINO's defaults, and so have we. Needs
openvino-genai beside the plugin.

python bench/beside_genai.py IR_DIRECTORY --batch 1 8 32 --prefix 0 512
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import openvino as ov
import openvino_genai as genai

from hybrid import LLM, SamplingParams

Prompts = list[list[int]]
Engine = Callable[[Prompts, int], int]
CACHE_GIB = 2


def hybrid_engine(directory: str, budget: int, *, caches_prefixes: bool) -> Engine:
    """Our scheduler over the plugin."""
    llm = LLM(
        directory,
        executor="openvino",
        enable_prefix_caching=caches_prefixes,
        max_num_batched_tokens=budget,
        kv_cache_memory=CACHE_GIB * 2**30,
        skip_tokenizer_init=True,
    )

    def run(prompts: Prompts, num_tokens: int) -> int:
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return run


def genai_engine(directory: str, budget: int, *, caches_prefixes: bool) -> Engine:
    """OpenVINO GenAI's own pipeline."""
    limits = genai.SchedulerConfig()
    limits.cache_size = CACHE_GIB
    limits.max_num_seqs = 256
    limits.max_num_batched_tokens = budget
    limits.dynamic_split_fuse = True
    limits.enable_prefix_caching = caches_prefixes
    pipeline = genai.ContinuousBatchingPipeline(directory, limits, "CPU", {})

    def run(prompts: Prompts, num_tokens: int) -> int:
        config = genai.GenerationConfig()
        config.max_new_tokens = num_tokens
        config.ignore_eos = True
        config.do_sample = False
        inputs = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = pipeline.generate(inputs, [config] * len(inputs))
        return sum(len(result.m_generation_ids[0]) for result in results)

    return run


def main() -> None:
    """Print one line a setting: medians, their ratio, and the range of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="an OpenVINO IR directory with tokenizer files")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prefix", type=int, nargs="+", default=[0, 512])
    parser.add_argument("--tokens", type=int, default=128, help="in, and out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=int, default=2048, help="tokens a step")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    for prefix in options.prefix:
        engines = [
            make(options.model, options.budget, caches_prefixes=prefix > 0)
            for make in (hybrid_engine, genai_engine)
        ]
        for batch in options.batch:
            shared = rng.integers(100, 40_000, prefix).tolist()
            rates: list[list[float]] = [[], []]
            for round_ in range(options.rounds + 1):
                tails = rng.integers(100, 40_000, (batch, options.tokens)).tolist()
                prompts = [shared + tail for tail in tails]
                # Each goes first in every second round.
                for index in (0, 1) if round_ % 2 else (1, 0):
                    started = time.perf_counter()
                    num_tokens = engines[index](prompts, options.tokens)
                    if round_:  # the first is to warm up, and to cache the prefix
                        seconds = time.perf_counter() - started
                        rates[index].append(num_tokens / seconds)
            ours, theirs = map(statistics.median, rates)
            pairs = [a / b for a, b in zip(*rates, strict=True)]
            print(
                f"prefix {prefix}, batch {batch}: {ours:.1f} and {theirs:.1f} tok/s, "
                f"{ours / theirs:.2f}x (rounds {min(pairs):.2f} to {max(pairs):.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
