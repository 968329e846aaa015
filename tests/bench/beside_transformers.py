"""Tokens a second of ``LLM`` beside transformers' ``generate``, in turns.

Both in one process, so that transformers profits from the memory that ours keeps.

python tests/bench/beside_transformers.py --batch 1 8 32
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import transformers

from hybrid import LLM, SamplingParams
from hybrid.backends.checkpoint.gguf_conversion import convert_gguf
from hybrid.models.cache import converted_dir
from hybrid.models.resolve import resolve_model

Prompts = list[list[int]]
Engine = Callable[[Prompts, int], int]


def hybrid_engine(model: str) -> Engine:
    """``LLM.generate`` without a prefix cache."""
    llm = LLM(model, dtype="bfloat16", enable_prefix_caching=False)

    def run(prompts: Prompts, num_tokens: int) -> int:
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return run


def transformers_engine(model: str) -> Engine:
    """``generate`` on the same weights."""
    source = convert_gguf(
        resolve_model(model), dtype="bfloat16", cache_dir=converted_dir()
    )
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        source.path, dtype=torch.bfloat16
    ).eval()
    loaded.generation_config.eos_token_id = None

    def run(prompts: Prompts, num_tokens: int) -> int:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            output = loaded.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                do_sample=False,
            )
        return output[:, ids.shape[1] :].numel()

    return run


def main() -> None:
    """Print one line a batch size: medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=128, help="in, and out")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    engines = [hybrid_engine(options.model), transformers_engine(options.model)]
    rng = np.random.default_rng(0)
    for batch in options.batch:
        rates: list[list[float]] = [[], []]
        for round_ in range(options.rounds + 1):
            prompts = rng.integers(100, 40_000, (batch, options.tokens)).tolist()
            for engine, seen in zip(engines, rates, strict=True):
                started = time.perf_counter()
                num_tokens = engine(prompts, options.tokens)
                if round_:  # the first is to warm up
                    seen.append(num_tokens / (time.perf_counter() - started))
        ours, theirs = map(statistics.median, rates)
        print(f"batch {batch}: {ours:.1f} and {theirs:.1f} tok/s, {ours / theirs:.2f}x")


if __name__ == "__main__":
    main()
