"""Answers of an executor without a model: every token from a whole new prefill."""

from collections.abc import Sequence

from hybrid.engine import HybridEngine
from hybrid.scheduler import SamplingParams

from .answer import Answer
from .engine_run import run
from .loaded_executor import LoadedExecutor


def recomputed_answers(
    loaded: LoadedExecutor, prompts: Sequence[Sequence[int]], num_tokens: int
) -> list[Answer]:
    """Greedy continuations in which no cached K and V take part.

    Each token is that of a fresh request which holds the whole prefix, alone and in one
    piece: no decode step, no reuse, no chunk, no neighbour.
    """
    engine = loaded.engine(enable_prefix_caching=False)
    return [_answer(engine, loaded, prompt, num_tokens) for prompt in prompts]


def _answer(
    engine: HybridEngine, loaded: LoadedExecutor, prompt: Sequence[int], num_tokens: int
) -> Answer:
    # Who samples itself tells no logits: its tokens must be equal as they are.
    num_top = 2 if loaded.executor.capabilities().returns_logits else None
    params = SamplingParams(
        temperature=0, max_tokens=1, ignore_eos=True, logprobs=num_top
    )
    ids: list[int] = []
    margins: list[float] = []
    for _ in range(num_tokens):
        (output,) = run(engine, [[*prompt, *ids]], params)
        sample = output.outputs[0]
        ids += sample.token_ids
        margin = float("inf")
        if sample.logprobs is not None:
            ranked = sorted(one.logprob for one in sample.logprobs[0].values())
            margin = ranked[-1] - ranked[-2]
        margins.append(margin)
    return Answer(tuple(ids), tuple(margins))
