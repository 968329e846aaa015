"""One OpenVINO model under hybrid's scheduler and under OpenVINO GenAI's, in turns.

Both run the same IR directory in one process. Each has its own defaults (GenAI a u8
cache, we one in the dtype) unless --kv-cache-precision sets both alike. Needs
openvino-genai beside the plugin.

python bench/beside_genai.py IR_DIRECTORY --kv-cache-precision u8
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import openvino as ov
import openvino_genai as genai

from hybrid import LLM, SamplingParams

Prompts = list[list[int]]
Engine = Callable[[Prompts, int], int]
CACHE_GIB = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """What both engines are told."""

    directory: str
    properties: dict[str, str]
    budget: int
    """Most tokens of a step."""
    caches_prefixes: bool


def hybrid_engine(setting: Setting) -> Engine:
    """Our scheduler over the plugin."""
    llm = LLM(
        setting.directory,
        executor="openvino",
        executor_options=setting.properties,
        enable_prefix_caching=setting.caches_prefixes,
        max_num_batched_tokens=setting.budget,
        kv_cache_memory=CACHE_GIB * 2**30,
        skip_tokenizer_init=True,
    )

    def run(prompts: Prompts, num_tokens: int) -> int:
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return run


def genai_engine(setting: Setting) -> Engine:
    """OpenVINO GenAI's own pipeline."""
    limits = genai.SchedulerConfig()
    limits.cache_size = CACHE_GIB
    limits.max_num_seqs = 256
    limits.max_num_batched_tokens = setting.budget
    limits.dynamic_split_fuse = True
    limits.enable_prefix_caching = setting.caches_prefixes
    pipeline = genai.ContinuousBatchingPipeline(
        setting.directory, limits, "CPU", setting.properties
    )

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
    parser.add_argument("--kv-cache-precision", help="of both; default: each its own")
    options = parser.parse_args()
    precision = options.kv_cache_precision
    properties = {} if precision is None else {"KV_CACHE_PRECISION": precision}
    rng = np.random.default_rng(0)
    for prefix in options.prefix:
        setting = Setting(options.model, properties, options.budget, prefix > 0)
        engines = [make(setting) for make in (hybrid_engine, genai_engine)]
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
